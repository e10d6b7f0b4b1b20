//! Debian's packages, where this process may install them.

use std::process::Command;

use anyhow::Result;

use crate::sh;

/// Installs `packages`, saying so. `false` where that cannot be done: no apt-get, or not root.
pub(super) fn install(what: &str, packages: &[&str]) -> Result<bool> {
    if sh::on_path("apt-get").is_none() || !is_root() {
        return Ok(false);
    }
    sh::step(&format!("{what} from Debian's packages"), || {
        let apt = |args: &[&str]| sh::read(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(args));
        let install = [&["install", "-qq", "--yes", "--no-install-recommends"], packages].concat();
        // The package lists may be missing or older than the archive.
        if apt(&install).is_err() {
            apt(&["update", "-qq"])?;
            apt(&install)?;
        }
        Ok(true)
    })
}

fn is_root() -> bool {
    sh::read(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}
