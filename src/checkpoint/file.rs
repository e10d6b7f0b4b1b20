//! Checkpoints as files: loading, with the data file beside it, and saving so that a failure or a
//! kill at any moment leaves the old file whole.

use super::CheckpointState;
use super::read::{ExternalData, read};
use crate::error::{Error, Kind, Result, bail, err};
use crate::tensor::{DType, Tensor, checked_len, show_dims};
use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

impl CheckpointState {
    /// Reads a checkpoint file, and `<path>.data` beside it if it keeps its tensors there.
    ///
    /// Errors: `Load` if a file cannot be read; else those of [`CheckpointState::from_bytes`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|e| cannot_read(path, &e))?;
        let mut data = OsString::from(path);
        data.push(".data");
        let data = DataFile { path: data.into(), opened: OnceCell::new() };
        read(&bytes, Some(&data)).map_err(|e| e.at(path.display().to_string()))
    }

    /// Writes a checkpoint file, with or without the optimizer's memory. The file is either
    /// written whole or left as it was: see [`write_atomically`].
    ///
    /// Errors: those of [`CheckpointState::to_bytes`] and of [`write_atomically`].
    pub fn save(&self, path: impl AsRef<Path>, include_optimizer_state: bool) -> Result<()> {
        write_atomically(path, &self.to_bytes(include_optimizer_state)?)
    }
}

fn cannot_read(path: &Path, e: &io::Error) -> Error {
    Error::new(Kind::Load, format!("cannot read {}: {e}", path.display()))
}

/// The file that a checkpoint too large for one flatbuffer keeps its tensors in.
struct DataFile {
    path: PathBuf,
    opened: OnceCell<Opened>,
}

struct Opened {
    file: RefCell<File>,
    /// Bytes that may still be read. Tensors do not share bytes, so all of them together are no
    /// larger than the file; a file that says otherwise is not read again and again.
    left: Cell<u64>,
}

impl DataFile {
    /// The file, opened when the first tensor asks for it.
    fn opened(&self) -> Result<&Opened> {
        if self.opened.get().is_none() {
            let opened = File::open(&self.path).and_then(|file| Ok((file.metadata()?.len(), file)));
            let (len, file) = opened.map_err(|e| cannot_read(&self.path, &e))?;
            let _ = self.opened.set(Opened { file: RefCell::new(file), left: Cell::new(len) });
        }
        self.opened.get().ok_or_else(|| err!(Load, "cannot read {}", self.path.display()))
    }
}

impl ExternalData for DataFile {
    fn tensor(&self, dtype: DType, shape: &[usize], offset: u64) -> Result<Tensor> {
        let data = self.opened()?;
        let bytes = checked_len(shape).and_then(|n| u64::try_from(n.checked_mul(dtype.size())?).ok());
        let Some(left) = bytes.and_then(|n| data.left.get().checked_sub(n)) else {
            let tensor = format!("{dtype}{}", show_dims(shape));
            return Err(err!(Checkpoint, "the data file is too short")
                .expected(format!("the bytes of {tensor} in {}", self.path.display()))
                .found(format!("{} bytes not yet read", data.left.get())));
        };
        data.left.set(left);
        let mut tensor = Tensor::zeros(dtype, shape).map_err(|e| e.with_kind(Kind::Checkpoint))?;
        let mut file = data.file.borrow_mut();
        file.seek(SeekFrom::Start(offset))
            .and_then(|_| file.read_exact(tensor.bytes_mut()))
            .map_err(|e| cannot_read(&self.path, &e).found(format!("nothing to read at offset {offset}")))?;
        Ok(tensor)
    }
}

/// Replaces the file at `path` by one that holds `bytes`, or leaves it as it was.
///
/// The bytes go into a new file in the same folder, which is flushed to the disk and then renamed
/// over the old one; the folder is flushed too where the system can. A failure removes the new
/// file; a kill may leave it behind (`.<name>.<process>-<n>.tmp`), never a half-written `path`.
/// A symbolic link is followed; the old file's permissions are kept.
///
/// Errors: `Device` with the system's word if anything fails (no space, no folder, no permission),
/// or if `path` is something other than a plain file.
pub fn write_atomically(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    replace(path.as_ref(), |file| file.write_all(bytes))
}

/// [`write_atomically`] with the writing itself as a parameter, so that a test can let it fail.
pub(super) fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let failed = |e: io::Error| Error::new(Kind::Device, format!("cannot write {}: {e}", path.display()));
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let old = match fs::metadata(&target) {
        Ok(old) if !old.is_file() => bail!(Device, "cannot write {}: it is not a plain file", path.display()),
        Ok(old) => Some(old),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(failed(e)),
    };
    let (mut file, temporary) = Temporary::create(&target).map_err(failed)?;
    if let Some(old) = old {
        file.set_permissions(old.permissions()).map_err(failed)?;
    }
    write(&mut file).and_then(|()| file.sync_all()).map_err(failed)?;
    drop(file);
    temporary.rename_to(&target).map_err(failed)?;
    // The new file is in place; that the rename outlives a power cut too is the best effort of a
    // system that may not be able to flush folders at all.
    #[cfg(unix)]
    if let Some(folder) = target.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// A new file beside the target that is removed unless it takes the target's place.
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn create(target: &Path) -> io::Result<(File, Self)> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Some(name) = target.file_name() else { return Err(io::ErrorKind::InvalidFilename.into()) };
        loop {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
            let path = target.with_file_name(hidden);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                // Left behind by a killed process of the same id.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e),
                Ok(file) => return Ok((file, Self(Some(path)))),
            }
        }
    }

    fn rename_to(mut self, target: &Path) -> io::Result<()> {
        if let Some(path) = &self.0 {
            fs::rename(path, target)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Nothing better can be done about a file that will not go.
            let _ = fs::remove_file(path);
        }
    }
}
