//! `cargo xtask build`: the engine as wasm, its bindings, the TypeScript around them: the npm package.
//!
//! ```text
//! src/ ──cargo──▶ target/wasm/…/ontrain.wasm ──bindgen, wasm-opt──▶ target/npm-stage/ontrain{.js,.d.ts,_bg.wasm}
//! pkg-templates/ ──copied─────────────────────────────────────────▶ target/npm-stage/
//! target/npm-stage/ ──tsc, copied──▶ target/npm/dist/, beside package.json, README.md and the licences
//! ```
//!
//! The sources in pkg-templates import the bindings as `./ontrain.js`, which lies beside them in the
//! stage and in the package; its `initSync` and default export take the module's bytes.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{setup, sh};

/// Build the npm package into target/npm
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build quickly: no link-time optimization and no wasm-opt
    #[arg(long)]
    dev: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let mode = if self.dev { Mode::Dev } else { Mode::Release };
        let package = package(mode)?;
        let wasm = package.join("dist").join(WASM);
        println!("{}", package.display());
        println!("{}: {}", WASM, sizes(&wasm)?);
        Ok(())
    }
}

/// The module's file name in the package.
pub(crate) const WASM: &str = "ontrain_bg.wasm";

/// The place that the version of the workspace takes in pkg-templates/package.json.
const VERSION_HOLE: &str = "\"version\": \"0.0.0\"";

/// How much the build may cost.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    /// For a quick look: seconds to build, larger and slower to run.
    Dev,
    /// What is published, tested and measured.
    Release,
}

impl Mode {
    /// The profile in Cargo.toml, which is also the folder's name in the target folder.
    fn profile(self) -> &'static str {
        match self {
            Mode::Dev => "wasm-dev",
            Mode::Release => "wasm",
        }
    }
}

/// Builds the npm package, or leaves it when nothing that goes into it has changed. Returns its folder.
pub(crate) fn package(mode: Mode) -> Result<PathBuf> {
    setup::node()?;
    let module = engine(mode)?;
    let out = sh::target().join("npm");
    let stamp = sh::target().join("npm.stamp");
    let inputs = fingerprint(mode, &module)?;
    if fs::read_to_string(&stamp).is_ok_and(|last| last == inputs) && out.join("dist").join(WASM).is_file() {
        return Ok(out);
    }
    // No stamp while the package is being changed.
    let _ = fs::remove_file(&stamp);
    let stage = sh::target().join("npm-stage");
    sh::fresh_dir(&stage)?;
    bindings(mode, &module, &stage)?;
    sh::copy_tree(&sh::root().join("pkg-templates"), &stage)?;
    assemble(&stage, &out)?;
    sh::write_file(&stamp, inputs)?;
    Ok(out)
}

/// Compiles the engine for wasm32. Flags of the target stand in .cargo/config.toml.
fn engine(mode: Mode) -> Result<PathBuf> {
    let toolchain = setup::toolchain()?;
    let target_dir = sh::target().join("wasm");
    sh::step("engine for wasm32", || {
        let mut cargo = sh::cargo();
        // Flags in the environment would replace the target's own.
        cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        cargo.args(["build", "--quiet", "--package", "ontrain", "--lib", "--target", setup::WASM_TARGET]);
        cargo.args(["--profile", mode.profile(), "--target-dir"]).arg(&target_dir);
        sh::run(toolchain.apply(&mut cargo))
    })?;
    Ok(target_dir.join(setup::WASM_TARGET).join(mode.profile()).join("ontrain.wasm"))
}

/// Writes ontrain.js, ontrain.d.ts and the final module into `stage`.
fn bindings(mode: Mode, module: &Path, stage: &Path) -> Result<()> {
    sh::step("bindings by wasm-bindgen", || {
        let mut cargo = sh::cargo();
        cargo.args(["run", "--quiet", "--package", "xtask-bindgen", "--profile", "tool", "--"]);
        sh::run(cargo.arg(module).arg(stage).arg("ontrain"))
    })?;
    if mode == Mode::Dev {
        return Ok(());
    }
    let wasm = stage.join(WASM);
    let optimizer = setup::wasm_opt()?;
    sh::step("wasm-opt", || {
        // The features that rustc enables for this target by default, and the one we add.
        let features = [
            "--mvp-features",
            "--enable-simd",
            "--enable-bulk-memory",
            "--enable-bulk-memory-opt",
            "--enable-call-indirect-overlong",
            "--enable-multivalue",
            "--enable-mutable-globals",
            "--enable-nontrapping-float-to-int",
            "--enable-reference-types",
            "--enable-sign-ext",
        ];
        let strip = ["--strip-debug", "--strip-producers", "--strip-target-features"];
        // The hot tiles are functions of their own because V8 (11.3, Node 20) runs them three times slower inside a
        // giant one: GEMM of 1024³ made 10 GFLOP/s with this inlining, 27 without.
        let apart = "--one-caller-inline-max-function-size=1";
        let optimized = wasm.with_extension("opt");
        let mut node = Command::new("node");
        node.arg(optimizer).args(["-O3", apart]).args(features).args(strip).arg(&wasm).arg("-o").arg(&optimized);
        sh::read(&mut node)?;
        fs::rename(&optimized, &wasm).with_context(|| format!("replacing {}", wasm.display()))
    })
}

/// Compiles the staged TypeScript into the package `out` and puts the other files beside it.
fn assemble(stage: &Path, out: &Path) -> Result<()> {
    sh::fresh_dir(out)?;
    let dist = out.join("dist");
    let (compiler, types) = (setup::tsc()?, setup::node_types()?);
    sh::step("TypeScript", || {
        let mut tsc = Command::new("node");
        tsc.arg(compiler).arg("--project").arg(stage.join("tsconfig.json"));
        tsc.arg("--rootDir").arg(stage).arg("--outDir").arg(&dist).arg("--typeRoots").arg(types);
        sh::read(&mut tsc)
    })?;
    for name in ["ontrain.js", "ontrain.d.ts", WASM] {
        copy(&stage.join(name), &dist.join(name))?;
    }

    let template = stage.join("package.json");
    let manifest = String::from_utf8(sh::read_file(&template)?).context("pkg-templates/package.json is not UTF-8")?;
    if manifest.matches(VERSION_HOLE).count() != 1 {
        bail!("pkg-templates/package.json must hold {VERSION_HOLE} once: the version comes from Cargo.toml");
    }
    let version = format!("\"version\": \"{}\"", version()?);
    sh::write_file(&out.join("package.json"), manifest.replace(VERSION_HOLE, &version))?;
    copy(&stage.join("README.md"), &out.join("README.md"))?;
    for name in LICENCES {
        copy(&sh::root().join(name), &out.join(name))?;
    }
    Ok(())
}

const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// The version of the workspace, as cargo reads it.
fn version() -> Result<String> {
    // The last line's end: `path+file:///…/checkout#ontrain@0.1.0`, or `…/ontrain#0.1.0`.
    let id = sh::read(sh::cargo().args(["pkgid", "--package", "ontrain"]))?;
    let version = id.trim().rsplit(['#', '@']).next().unwrap_or_default();
    if !version.starts_with(|first: char| first.is_ascii_digit()) {
        bail!("`cargo pkgid` names no version: {id:?}");
    }
    Ok(version.to_owned())
}

/// Changes whenever anything changes that the package is made of.
fn fingerprint(mode: Mode, module: &Path) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    // This program's own part: the tools' versions and options.
    (mode, version()?, include_str!("build.rs"), include_str!("setup.rs")).hash(&mut hasher);
    sh::read_file(module)?.hash(&mut hasher);
    let templates = sh::files_under(&sh::root().join("pkg-templates"))?;
    for file in templates.into_iter().chain(LICENCES.map(|name| sh::root().join(name))) {
        (&file, sh::read_file(&file)?).hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// The bytes of a file as it is and as servers send it.
pub(crate) struct Sizes {
    /// As it is.
    pub(crate) raw: u64,
    /// Compressed by gzip at its best level.
    pub(crate) gzip: u64,
    /// Compressed by brotli at its best level.
    pub(crate) brotli: u64,
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kb = |bytes: u64| bytes as f64 / 1000.0;
        write!(f, "{:.1} kB, gzip {:.1} kB, brotli {:.1} kB", kb(self.raw), kb(self.gzip), kb(self.brotli))
    }
}

/// Measures `file` with the compressors that Node carries.
pub(crate) fn sizes(file: &Path) -> Result<Sizes> {
    let script = "const z = require('node:zlib'), b = require('node:fs').readFileSync(process.argv[1]);
        console.log(b.length, z.gzipSync(b, { level: 9 }).length, z.brotliCompressSync(b).length)";
    let printed = sh::read(Command::new("node").args(["-e", script]).arg(file))?;
    let numbers: Vec<u64> = printed.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [raw, gzip, brotli] = numbers[..] else { bail!("Node printed no sizes: {printed:?}") };
    Ok(Sizes { raw, gzip, brotli })
}
