//! Running other programs, and saying what takes time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    // xtask/ lies directly under it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is not at the file system's root")
}

/// Cargo's target folder of the checkout, where everything that xtask builds goes as well.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// `cargo` as it was called, in the root of the checkout.
pub(crate) fn cargo() -> Command {
    let mut cmd = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.current_dir(root());
    cmd
}

/// `npm`, which is a script and not a program on Windows.
pub(crate) fn npm() -> Command {
    Command::new(if cfg!(windows) { "npm.cmd" } else { "npm" })
}

/// Runs `cmd` with its output on this terminal.
pub(crate) fn run(cmd: &mut Command) -> Result<()> {
    let status = cmd.status().with_context(|| not_started(cmd))?;
    if !status.success() {
        bail!("{}: {status}", line(cmd));
    }
    Ok(())
}

/// Runs `cmd` and returns what it printed; its errors become part of the error.
pub(crate) fn read(cmd: &mut Command) -> Result<String> {
    let out = cmd.stdin(Stdio::null()).output().with_context(|| not_started(cmd))?;
    if !out.status.success() {
        let said = [String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)].concat();
        bail!("{}: {}\n{}", line(cmd), out.status, last_lines(&said, 30));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Is there a program of this name on PATH?
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|dir| [dir.join(program), dir.join(format!("{program}.exe"))])
        .find(|file| file.is_file())
}

/// Says `what` is being done, does it, says how long it took: on standard error, since results go to standard output.
pub(crate) fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("· {what} …");
    let start = Instant::now();
    let result = work();
    let verdict = if result.is_ok() { "" } else { ", failed" };
    eprintln!("  {:.1} s{verdict}", start.elapsed().as_secs_f64());
    result.with_context(|| format!("{what} failed"))
}

/// `fs::read` whose error names the file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// `fs::write` that makes the folder and whose error names the file.
pub(crate) fn write_file(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    if let Some(dir) = path.parent() {
        make_dir(dir)?;
    }
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// `fs::create_dir_all` whose error names the folder.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))
}

/// An empty folder at `dir`, whatever was there.
pub(crate) fn fresh_dir(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    make_dir(dir)
}

/// Copies the files under `from` to the same places under `to`.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    make_dir(to)?;
    for file in files_under(from)? {
        let target = to.join(file.strip_prefix(from)?);
        if let Some(dir) = target.parent() {
            make_dir(dir)?;
        }
        fs::copy(&file, &target).with_context(|| format!("copying {} to {}", file.display(), target.display()))?;
    }
    Ok(())
}

/// Every file under `dir` but what npm installed there, sorted.
pub(crate) fn files_under(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry?.path();
        if !path.is_dir() {
            files.push(path);
        } else if path.file_name().is_some_and(|name| name != "node_modules") {
            files.extend(files_under(&path)?);
        }
    }
    files.sort();
    Ok(files)
}

/// Waits for a process that has been told to end: it may have a browser to close. One that hangs is stopped.
pub(crate) fn end(child: &mut Child) {
    for _ in 0..100 {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn not_started(cmd: &Command) -> String {
    format!("cannot start `{}`: is it installed and on PATH?", cmd.get_program().to_string_lossy())
}

fn line(cmd: &Command) -> String {
    let words = std::iter::once(cmd.get_program()).chain(cmd.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
