//! The npm package as a user gets it: packed, installed into a project of its own, run there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build::{self, Mode};
use crate::{setup, sh};

/// Builds the package, packs it by `npm pack` and installs the tarball into an empty project. Returns
/// the project's folder, which is made anew each time and holds nothing else.
pub(crate) fn pack_and_install() -> Result<PathBuf> {
    let package = build::package(Mode::Release)?;
    let project = sh::target().join("npm-project");
    sh::step("npm package, packed and installed", || {
        sh::fresh_dir(&project)?;
        let name = sh::read(sh::npm().current_dir(&project).args(["pack", "--silent"]).arg(&package))?;
        let tarball = project.join(name.trim());
        if !tarball.is_file() {
            bail!("npm pack made no {}", tarball.display());
        }
        sh::write_file(&project.join("package.json"), "{ \"private\": true, \"type\": \"module\" }\n")?;
        setup::npm_install(&project, &format!("./{}", name.trim()))
    })?;
    Ok(project)
}

/// Makes the installed npm package `package` (its folder) importable by its name in `project`.
pub(crate) fn link(project: &Path, package: &Path) -> Result<()> {
    // With the scope that the package may have: `@types/node`.
    let parts = package.components().rev().take_while(|part| part.as_os_str() != "node_modules");
    let name: PathBuf = parts.collect::<Vec<_>>().into_iter().rev().collect();
    let place = project.join("node_modules").join(name);
    if place.exists() {
        return Ok(());
    }
    sh::make_dir(place.parent().context("it lies in node_modules")?)?;
    // Its own dependencies lie beside it where it really is, and Node looks for them there.
    #[cfg(unix)]
    std::os::unix::fs::symlink(package, &place).with_context(|| format!("linking {}", place.display()))?;
    #[cfg(windows)]
    std::os::windows::fs::symlink_dir(package, &place).with_context(|| format!("linking {}", place.display()))?;
    Ok(())
}

/// Copies tests/js into `project` as its folder `js`, where `ontrain` is the installed package. Returns
/// the folder.
pub(crate) fn copy_tests(project: &Path) -> Result<PathBuf> {
    let tests = sh::root().join("tests").join("js");
    let copy = project.join("js");
    sh::copy_tree(&tests, &copy)?;
    Ok(copy)
}

/// Node, in `project`, with what the scripts of tests/js are told by the environment:
/// `ONTRAIN_FIXTURES` is the folder tests/fixtures of the checkout.
pub(crate) fn node(project: &Path) -> Command {
    let mut node = Command::new("node");
    node.current_dir(project).env("ONTRAIN_FIXTURES", sh::root().join("tests").join("fixtures"));
    node
}

/// Runs the tests `js/*.test.mjs` of `project` by Node's own runner. `ONTRAIN_TSC` is TypeScript's compiler, for the
/// test of the declarations.
pub(crate) fn run_tests(project: &Path) -> Result<()> {
    let folder = copy_tests(project)?;
    let mut tests: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        tests.extend(path.to_string_lossy().ends_with(".test.mjs").then_some(path));
    }
    tests.sort();
    if tests.is_empty() {
        // Node would look for tests elsewhere, find none and be content.
        bail!("tests/js holds no *.test.mjs");
    }
    sh::run(node(project).env("ONTRAIN_TSC", setup::tsc()?).arg("--test").args(tests))
}

/// Runs tests/js/chromium.mjs in `project`: it serves the project on localhost, opens a page of it with
/// playwright-core in the browser `CHROME_PATH`, and exits with 1 when a test in the page fails.
pub(crate) fn run_in_chromium(project: &Path) -> Result<()> {
    let browser = setup::chromium()?;
    link(project, &setup::playwright()?)?;
    let script = copy_tests(project)?.join("chromium.mjs");
    if !script.is_file() {
        bail!("tests/js/chromium.mjs is missing");
    }
    sh::run(node(project).env("CHROME_PATH", browser).env("ONTRAIN_MNIST", setup::mnist()?).arg(script))
}
