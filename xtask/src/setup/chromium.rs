//! A Chromium for the browser tests.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::apt;
use crate::sh;

/// Names that Chromium and its like go by on PATH.
const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome"];

/// Where installers put it without touching PATH.
const PLACES: [&str; 4] = [
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:\\Program Files\\Google\\Chrome\\Application\\chrome.exe",
    "C:\\Program Files (x86)\\Google\\Chrome\\Application\\chrome.exe",
];

/// The browser's program: `CHROME_PATH`, else one that is installed, else Debian's, installed now.
pub(crate) fn chromium() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("CHROME_PATH").filter(|path| !path.is_empty()).map(PathBuf::from) {
        if path.is_file() {
            return Ok(path);
        }
        bail!("CHROME_PATH={}: there is no such file", path.display());
    }
    if let Some(path) = installed() {
        return Ok(path);
    }
    if apt::install("Chromium", &["chromium"])?
        && let Some(path) = installed()
    {
        return Ok(path);
    }
    bail!(
        "no Chromium or Chrome was found, and the browser tests need one: install it (Debian: `apt-get install \
         chromium` as root; macOS: `brew install --cask chromium`; elsewhere Google Chrome's installer) or set \
         CHROME_PATH to the program"
    )
}

fn installed() -> Option<PathBuf> {
    let elsewhere = || PLACES.iter().map(PathBuf::from).find(|path| path.is_file());
    NAMES.iter().find_map(|name| sh::on_path(name)).or_else(elsewhere)
}
