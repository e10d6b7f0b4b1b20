//! A Rust compiler with a standard library for wasm32-unknown-unknown.
//!
//! Three ways, the cheapest that works: the toolchain in use has the target; rustup can add it; or
//! Debian's `rustc-web` with the standard library built from `rust-web-src`. The last is unpacked into
//! the cache and installs nothing. Its compiler is not the one in use (a standard library can only be
//! built by its own), which is why wasm has a target folder of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{cache, sh};

/// The target triple of the engine's wasm build.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// The oldest compiler that builds this workspace.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");

/// A compiler for `TARGET`.
pub(crate) struct Toolchain {
    /// None: the toolchain that cargo uses anyway.
    rustc: Option<PathBuf>,
}

impl Toolchain {
    /// Makes the cargo command `cmd` build with this compiler.
    pub(crate) fn apply<'a>(&self, cmd: &'a mut Command) -> &'a mut Command {
        match &self.rustc {
            Some(rustc) => cmd.env("RUSTC", rustc).env_remove("RUSTC_WRAPPER"),
            None => cmd,
        }
    }

    /// Is it the toolchain that cargo uses anyway?
    pub(crate) fn in_use(&self) -> bool {
        self.rustc.is_none()
    }

    /// In words, for `cargo xtask setup`.
    pub(crate) fn describe(&self) -> String {
        match &self.rustc {
            Some(rustc) => format!("built from Debian's packages, {}", rustc.display()),
            None => "in the Rust toolchain in use".to_owned(),
        }
    }
}

/// Finds or makes a compiler for `TARGET`.
pub(crate) fn toolchain() -> Result<Toolchain> {
    if has_target() {
        return Ok(Toolchain { rustc: None });
    }
    if let Some(prefix) = cache::filled(DEBIAN, &debian_key())? {
        return debian_toolchain(&prefix);
    }
    let rustup = sh::step("rustup target add", || {
        sh::read(Command::new("rustup").current_dir(sh::root()).args(["target", "add", TARGET]))
    });
    if rustup.is_ok() && has_target() {
        return Ok(Toolchain { rustc: None });
    }

    let tools = ["apt-get", "apt-cache", "dpkg", "dpkg-deb", "tar", "sh"];
    if let Some(missing) = tools.iter().find(|tool| sh::on_path(tool).is_none()) {
        let reason = rustup.err().map_or_else(|| "it reported success".to_owned(), |error| format!("{error:#}"));
        bail!(
            "this Rust toolchain has no {TARGET} and rustup did not add it ({reason}). The other way, Debian's \
             packages, needs a Debian system ({missing} is not on PATH). Install Rust with rustup and run \
             `rustup target add {TARGET}`"
        );
    }
    let prefix = cache::entry(DEBIAN, &debian_key(), "wasm32 standard library from Debian's packages", build_debian)?;
    debian_toolchain(&prefix)
}

/// Does the toolchain in use have a standard library for `TARGET`?
fn has_target() -> bool {
    let args = ["--print", "target-libdir", "--target", TARGET];
    let Ok(dir) = sh::read(Command::new("rustc").current_dir(sh::root()).args(args)) else { return false };
    fs::read_dir(dir.trim()).is_ok_and(|mut files| {
        files.any(|file| file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libstd-")))
    })
}

/// The cache folder of the third way.
const DEBIAN: &str = "wasm-rust";

fn debian_key() -> String {
    format!("recipe 1, rust >= {OLDEST}")
}

/// The parts of a prefix that packages were unpacked into.
struct Prefix<'a> {
    dir: &'a Path,
    /// Debian's name of this machine's library folder, such as x86_64-linux-gnu.
    multiarch: &'static str,
    /// rustc's name of this machine.
    host: &'static str,
}

impl<'a> Prefix<'a> {
    fn at(dir: &'a Path) -> Result<Self> {
        let arch = sh::read(Command::new("dpkg").arg("--print-architecture"))?;
        let (multiarch, host) = match arch.trim() {
            "amd64" => ("x86_64-linux-gnu", "x86_64-unknown-linux-gnu"),
            "arm64" => ("aarch64-linux-gnu", "aarch64-unknown-linux-gnu"),
            other => bail!("Debian's packages are used on amd64 and arm64 only; this is {other}"),
        };
        Ok(Prefix { dir, multiarch, host })
    }

    fn sysroot(&self) -> PathBuf {
        self.dir.join("root").join("usr")
    }

    fn rustc(&self) -> PathBuf {
        self.dir.join("bin").join("rustc")
    }
}

/// The toolchain in a filled prefix. Its linker is the one of the toolchain in use, which may have
/// been updated or removed since, so it is looked up each time.
fn debian_toolchain(dir: &Path) -> Result<Toolchain> {
    let prefix = Prefix::at(dir)?;
    link_linker(&prefix)?;
    Ok(Toolchain { rustc: Some(prefix.rustc()) })
}

fn build_debian(dir: &Path) -> Result<()> {
    let prefix = Prefix::at(dir)?;
    sh::step("Debian's rustc-web, its libraries and sources", || unpack_packages(&prefix))?;
    write_wrapper(&prefix, "rustc")?;
    write_wrapper(&prefix, "rustdoc")?;
    link_linker(&prefix)?;
    sh::read(Command::new(prefix.rustc()).arg("--version")).context("Debian's compiler does not run here")?;
    sh::step("standard library for wasm32 from source", || build_std(&prefix))
}

/// `apt-get` or `apt-cache` with package lists of its own: neither root nor fresh lists of the system
/// are needed, and the system's are left alone.
fn apt(program: &str, dir: &Path) -> Command {
    let mut cmd = Command::new(program);
    let state = dir.join("apt");
    cmd.arg("-qq").arg("-o").arg(format!("Dir::State={}", state.display()));
    cmd.args(["-o", "Dir::State::status=/var/lib/dpkg/status"]);
    cmd.arg("-o").arg(format!("Dir::Cache={}", state.display()));
    cmd
}

fn unpack_packages(prefix: &Prefix) -> Result<()> {
    let dir = prefix.dir;
    for folder in ["apt/lists/partial", "apt/archives/partial", "debs", "root"] {
        sh::make_dir(&dir.join(folder))?;
    }
    sh::read(apt("apt-get", dir).arg("update"))?;
    let version = candidate(&sh::read(apt("apt-cache", dir).args(["policy", "rustc-web"]))?)?;
    if version < release(OLDEST)? {
        bail!("Debian's rustc-web is {}.{} here, and ontrain needs Rust {OLDEST}", version.0, version.1);
    }

    // The library packages carry their version in their names.
    let depends = |package: &str, prefix: &str| -> Result<String> {
        let listing = sh::read(apt("apt-cache", dir).args(["depends", package]))?;
        let names = listing.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let found = names.map(str::trim).find(|name| name.starts_with(prefix)).map(str::to_owned);
        found.with_context(|| format!("Debian's {package} depends on no {prefix}*"))
    };
    let std = depends("libstd-rust-web-dev", "libstd-rust-web-")?;
    let llvm = depends(&std, "libllvm")?;
    let packages = ["rustc-web", "libstd-rust-web-dev", "rust-web-src", &std, &llvm];
    sh::read(apt("apt-get", dir).current_dir(dir.join("debs")).arg("download").args(packages))?;

    for deb in sh::files_under(&dir.join("debs"))? {
        let sources = deb.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rust-web-src"));
        // Of the sources only the standard library is needed, a sixth of them.
        let select: &[&str] =
            if sources { &["--wildcards", "./usr/src/rustc-*/library/*"] } else { &["--exclude=./usr/share*"] };
        unpack(&deb, &dir.join("root"), select)?;
    }
    fs::remove_dir_all(dir.join("debs"))?;
    fs::remove_dir_all(dir.join("apt"))?;
    Ok(())
}

fn unpack(deb: &Path, root: &Path, select: &[&str]) -> Result<()> {
    let mut reader = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(deb).stdout(Stdio::piped()).spawn()?;
    let tar = reader.stdout.take().context("dpkg-deb has no output")?;
    let unpacked = Command::new("tar").arg("-x").arg("-C").arg(root).args(select).stdin(tar).status()?;
    if !reader.wait()?.success() || !unpacked.success() {
        bail!("cannot unpack {}", deb.display());
    }
    Ok(())
}

/// The version (major, minor) that `apt-cache policy` would install.
fn candidate(policy: &str) -> Result<(u32, u32)> {
    let line = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    release(line.context("Debian's archive has no package rustc-web here")?)
}

/// (major, minor) of a version such as 1.96.0+dfsg1-1.
fn release(version: &str) -> Result<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => bail!("{version:?} is no version of Rust"),
    }
}

/// A script that starts the unpacked `program` with its own libraries and sysroot.
fn write_wrapper(prefix: &Prefix, program: &str) -> Result<()> {
    let usr = prefix.sysroot();
    let libraries = usr.join("lib").join(prefix.multiarch);
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH=\"{libs}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\" \
         exec \"{usr}/bin/{program}\" --sysroot \"{usr}\" \"$@\"\n",
        libs = libraries.display(),
        usr = usr.display(),
    );
    let path = prefix.dir.join("bin").join(program);
    sh::write_file(&path, script)?;
    sh::run(Command::new("chmod").arg("+x").arg(&path))
}

/// Puts the toolchain's own wasm linker where Debian's compiler looks for it.
fn link_linker(prefix: &Prefix) -> Result<()> {
    let bin = |sysroot: &Path| sysroot.join("lib").join("rustlib").join(prefix.host).join("bin");
    let sysroot = sh::read(Command::new("rustc").current_dir(sh::root()).args(["--print", "sysroot"]))?;
    let linker = bin(Path::new(sysroot.trim())).join("rust-lld");
    if !linker.is_file() {
        bail!("the Rust toolchain in use has no rust-lld ({} is missing)", linker.display());
    }
    let link = bin(&prefix.sysroot());
    sh::make_dir(&link)?;
    sh::run(Command::new("ln").arg("-sfn").arg(&linker).arg(link.join("rust-lld")))
}

/// Builds the standard library by its own compiler and puts it into the sysroot.
fn build_std(prefix: &Prefix) -> Result<()> {
    let src = prefix.sysroot().join("src");
    let library = fs::read_dir(&src)?
        .filter_map(|entry| Some(entry.ok()?.path().join("library")))
        .find(|path| path.is_dir())
        .with_context(|| format!("no library sources in {}", src.display()))?;
    let build = prefix.dir.join("build");
    let mut cargo = sh::cargo();
    for name in ["CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WRAPPER"] {
        cargo.env_remove(name);
    }
    cargo
        .current_dir(&library)
        .env("RUSTC", prefix.rustc())
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", "-Zforce-unstable-if-unmarked")
        .args(["build", "--quiet", "--locked", "--manifest-path", "sysroot/Cargo.toml", "--profile", "dist"])
        .args(["--features", "panic-unwind", "--target", TARGET, "--target-dir"])
        .arg(&build);
    sh::read(&mut cargo)?;

    let libdir = prefix.sysroot().join("lib").join("rustlib").join(TARGET).join("lib");
    sh::fresh_dir(&libdir)?;
    let built = build.join(TARGET).join("dist").join("deps");
    for file in sh::files_under(&built)? {
        if file.extension().is_some_and(|extension| extension == "rlib") {
            let name = file.file_name().context("a file has a name")?;
            fs::copy(&file, libdir.join(name)).with_context(|| format!("copying {}", file.display()))?;
        }
    }
    fs::remove_dir_all(&build)?;
    fs::remove_dir_all(&src)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{candidate, release};

    #[test]
    fn versions_of_debian_packages_are_read() {
        let policy = "rustc-web:\n  Installed: (none)\n  Candidate: 1.96.0+dfsg1-1~deb12u2\n  Version table:\n";
        assert_eq!(candidate(policy).unwrap(), (1, 96));
        assert!(release("1.96.0+dfsg1").unwrap() >= release("1.95").unwrap());
        assert!(candidate("rustc-web:\n  Candidate: (none)\n").is_err());
        assert!(candidate("").is_err());
    }
}
