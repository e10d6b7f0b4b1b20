//! Things that are fetched or built once per machine and kept outside the checkout.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sh;

/// Where they are kept: `ONTRAIN_CACHE`, or `ontrain` in the user's cache folder.
pub(crate) fn dir() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = var("ONTRAIN_CACHE") {
        return std::path::absolute(&dir).with_context(|| format!("ONTRAIN_CACHE={}", dir.display()));
    }
    var("XDG_CACHE_HOME")
        .or_else(|| var("LOCALAPPDATA"))
        .or_else(|| var("HOME").map(|home| home.join(".cache")))
        .map(|dir| dir.join("ontrain"))
        .context("no cache folder is known: set ONTRAIN_CACHE to one")
}

/// The folder `name` of the cache, filled by `fill` if it isn't there or was filled for another `key`.
///
/// A stamp that holds `key` is renamed into place when `fill` has returned, so a folder left by a run
/// that was stopped half-way is thrown away by the next one. Two runs at once wait for each other.
pub(crate) fn entry(name: &str, key: &str, what: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let place = dir()?.join(name);
    let stamp = place.join(".stamp");
    let filled = || fs::read(&stamp).is_ok_and(|found| found == key.as_bytes());
    if filled() {
        return Ok(place);
    }

    let lock_file = dir()?.join("locks").join(name.replace('/', "+"));
    sh::make_dir(&dir()?.join("locks"))?;
    let lock = File::options().create(true).append(true).open(&lock_file);
    // Held until this function returns.
    let _lock =
        lock.and_then(|file| file.lock().map(|()| file)).with_context(|| format!("locking {}", lock_file.display()))?;
    if filled() {
        return Ok(place);
    }
    sh::step(what, || {
        sh::fresh_dir(&place)?;
        fill(&place)?;
        let unfinished = place.join(".stamp.new");
        sh::write_file(&unfinished, key)?;
        fs::rename(&unfinished, &stamp).with_context(|| format!("writing {}", stamp.display()))
    })?;
    Ok(place)
}

/// Is the folder `name` there, filled for `key`?
pub(crate) fn filled(name: &str, key: &str) -> Result<Option<PathBuf>> {
    let place = dir()?.join(name);
    Ok(fs::read(place.join(".stamp")).is_ok_and(|found| found == key.as_bytes()).then_some(place))
}
