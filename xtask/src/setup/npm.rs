//! Packages from npm, each at one exact version in a folder of its own.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{cache, setup, sh};

/// The folder of the package `name` at exactly `version`, installed with its dependencies.
pub(crate) fn package(name: &str, version: &str) -> Result<PathBuf> {
    let folder = format!("npm/{}-{version}", name.replace('/', "+"));
    let place = cache::entry(&folder, "1", &format!("npm package {name} {version}"), |dir| {
        // A project of its own, so that npm doesn't look for one in the folders above.
        sh::write_file(&dir.join("package.json"), "{ \"private\": true }\n")?;
        install(dir, &format!("{name}@{version}"))
    })?;
    Ok(place.join("node_modules").join(name))
}

/// `npm install SPEC` into the project `dir`, leaving no lock file and running no package's scripts.
pub(crate) fn install(dir: &Path, spec: &str) -> Result<()> {
    setup::node()?;
    sh::read(sh::npm().current_dir(dir).args([
        "install",
        "--no-package-lock",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        spec,
    ]))?;
    Ok(())
}
