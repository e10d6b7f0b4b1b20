//! Tensor data that lies in files beside the model.

#[cfg(not(target_arch = "wasm32"))]
use crate::error::err;
use crate::error::{Result, bail};
use std::collections::{BTreeMap, HashMap};

/// Where the bytes of external tensors come from. A file is named as the model names it: relative to the
/// model, with `/` between folders, never leaving the model's folder (that is checked before).
pub trait ExternalData {
    /// Size of a file in bytes, `None` if there is no such file.
    fn size(&self, file: &str) -> Result<Option<u64>>;

    /// Fills `out` from `offset` on. Called only for ranges that lie within [`size`](Self::size).
    fn read(&self, file: &str, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// For models that are one file.
pub struct NoExternalData;

impl ExternalData for NoExternalData {
    fn size(&self, _: &str) -> Result<Option<u64>> {
        Ok(None)
    }

    fn read(&self, file: &str, _: u64, _: &mut [u8]) -> Result<()> {
        bail!(Load, "no file \"{file}\" was given")
    }
}

/// Files in memory, by name.
macro_rules! in_memory {
    ($map:ident) => {
        impl<B: AsRef<[u8]>> ExternalData for $map<String, B> {
            fn size(&self, file: &str) -> Result<Option<u64>> {
                Ok(self.get(file).map(|bytes| bytes.as_ref().len() as u64))
            }

            fn read(&self, file: &str, offset: u64, out: &mut [u8]) -> Result<()> {
                let bytes = self.get(file).map_or(&[][..], AsRef::as_ref);
                let start = usize::try_from(offset).ok();
                match start.and_then(|start| bytes.get(start..start.checked_add(out.len())?)) {
                    Some(part) => out.copy_from_slice(part),
                    None => bail!(Load, "the file \"{file}\" is too short"),
                }
                Ok(())
            }
        }
    };
}
in_memory!(BTreeMap);
in_memory!(HashMap);

/// The folder that a model file lies in.
#[cfg(not(target_arch = "wasm32"))]
pub struct Folder(std::path::PathBuf);

#[cfg(not(target_arch = "wasm32"))]
impl Folder {
    /// The folder of the model at `model`.
    pub fn of(model: &std::path::Path) -> Self {
        match model.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => Self(folder.into()),
            _ => Self(".".into()),
        }
    }

    /// The file's own path, links followed: it must still lie in the folder.
    fn path(&self, file: &str) -> Result<Option<std::path::PathBuf>> {
        let full = match self.0.join(file).canonicalize() {
            Ok(full) => full,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => bail!(Load, "the file \"{file}\" cannot be read: {e}"),
        };
        let folder = self.0.canonicalize().map_err(|e| err!(Load, "the model's folder cannot be read: {e}"))?;
        if !full.starts_with(folder) {
            bail!(Load, "the file \"{file}\" is a link that leaves the model's folder");
        }
        Ok(Some(full))
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl ExternalData for Folder {
    fn size(&self, file: &str) -> Result<Option<u64>> {
        let Some(path) = self.path(file)? else { return Ok(None) };
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_file() => Ok(Some(meta.len())),
            Ok(_) => bail!(Load, "\"{file}\" is not a file"),
            Err(e) => bail!(Load, "the file \"{file}\" cannot be read: {e}"),
        }
    }

    fn read(&self, file: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let Some(path) = self.path(file)? else { bail!(Load, "there is no file \"{file}\"") };
        let fill = || -> std::io::Result<()> {
            let mut opened = std::fs::File::open(path)?;
            opened.seek(SeekFrom::Start(offset))?;
            opened.read_exact(out)
        };
        fill().map_err(|e| err!(Load, "the file \"{file}\" cannot be read: {e}"))
    }
}

/// `location` of a tensor as a plain relative path: no drive, no way up, no empty parts.
pub(super) fn checked_location(location: &str) -> Result<String> {
    let mut parts = Vec::new();
    for part in location.split(['/', '\\']) {
        match part {
            "." => {}
            "" | ".." => bail!(Load, "the external data file \"{location}\" lies outside the model's folder"),
            _ if part.contains([':', '\0']) => bail!(Load, "\"{location}\" is not a relative file name"),
            _ => parts.push(part),
        }
    }
    match parts.is_empty() {
        true => bail!(Load, "\"{location}\" is not a file name"),
        false => Ok(parts.join("/")),
    }
}
