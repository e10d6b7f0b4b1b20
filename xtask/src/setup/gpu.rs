//! A GPU for the native backend `webgpu`. macOS and Windows bring what wgpu needs; on Linux that is Vulkan's loader and a
//! driver. Where there is no GPU, Mesa's lavapipe is a driver that computes on the CPU: it proves correctness, never speed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::apt;
use crate::{cache, sh};

/// What a driver computes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gpu {
    /// The CPU.
    Software,
    /// The machine's GPU if it has one, else the CPU.
    Hardware,
}

/// Folders in which drivers of Vulkan say that they are there.
const MANIFESTS: [&str; 4] =
    ["/etc/vulkan/icd.d", "/usr/local/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d"];

/// How the manifest of lavapipe is called, with the machine's name after it.
const LAVAPIPE: &str = "lvp_icd.";

/// Variables that tell Vulkan's loader which drivers to look at: the name since 2022, and the one before.
const DRIVERS: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Finds a driver, or installs lavapipe, and sets the environment by which wgpu finds it, here and in the processes that
/// are started from here. `default` is what is wanted unless ONTRAIN_GPU says `software` or `hardware`. Returns what
/// there is.
///
/// To be called before the process has a second thread.
pub(crate) fn gpu(default: Gpu) -> Result<String> {
    let wanted = match std::env::var("ONTRAIN_GPU").as_deref() {
        Ok("software") => Gpu::Software,
        Ok("hardware") => Gpu::Hardware,
        Ok(other) if !other.is_empty() => bail!("ONTRAIN_GPU={other}: expected software or hardware"),
        _ => default,
    };
    if !cfg!(target_os = "linux") {
        return Ok("the operating system's".into());
    }
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Drivers warn when they have no folder for their sockets.
        let folder = cache::dir()?.join("run");
        sh::make_dir(&folder)?;
        set("XDG_RUNTIME_DIR", &folder);
    }
    if let Some(chosen) = DRIVERS.iter().find_map(std::env::var_os) {
        return Ok(format!("Vulkan by {}", chosen.display()));
    }
    if driver(wanted).is_none() {
        apt::install("Vulkan with a driver for the CPU", &["libvulkan1", "mesa-vulkan-drivers"])?;
    }
    let Some(manifest) = driver(wanted) else {
        bail!(
            "no driver of Vulkan was found, and the backend webgpu needs one: install the GPU's, or Mesa's lavapipe, \
             which computes on the CPU (Debian: `apt-get install libvulkan1 mesa-vulkan-drivers` as root; Fedora: \
             `dnf install vulkan-loader mesa-vulkan-drivers`)"
        )
    };
    if wanted == Gpu::Hardware {
        return Ok("Vulkan on the best device of its drivers".into());
    }
    for name in DRIVERS {
        set(name, &manifest);
    }
    Ok(format!("Vulkan on the CPU by {}", manifest.display()))
}

/// The environment in which a process that has Chromium's WebGPU finds the driver that Chromium brings, SwiftShader: it
/// wants a newer lavapipe than most machines have. Empty if ONTRAIN_GPU is `hardware`.
pub(crate) fn chromium_gpu() -> Result<Vec<(&'static str, PathBuf)>> {
    if std::env::var_os("ONTRAIN_GPU").is_some_and(|gpu| gpu == "hardware") {
        return Ok(Vec::new());
    }
    let program = super::chromium()?;
    let beside = program.canonicalize()?.parent().map(Path::to_owned);
    // A program on PATH may be a script.
    let folders = ["/usr/lib/chromium", "/usr/lib/chromium-browser", "/opt/google/chrome"].map(PathBuf::from);
    let manifests = beside.into_iter().chain(folders).map(|dir| dir.join("vk_swiftshader_icd.json"));
    let manifest = manifests.into_iter().find(|path| path.is_file());
    let manifest = manifest.with_context(|| format!("{} brings no SwiftShader", program.display()))?;
    Ok(DRIVERS.map(|name| (name, manifest.clone())).into())
}

/// The manifest of a driver that may serve, if the loader is there as well.
fn driver(wanted: Gpu) -> Option<PathBuf> {
    let libraries = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let multiarch = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let loader = libraries.into_iter().chain([multiarch]).any(|dir| dir.join("libvulkan.so.1").exists());
    let serves = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        wanted == Gpu::Hardware || name.starts_with(LAVAPIPE)
    };
    let folders = MANIFESTS.iter().filter_map(|dir| fs::read_dir(dir).ok());
    folders.flatten().flatten().map(|entry| entry.path()).find(serves).filter(|_| loader)
}

fn set(name: &str, value: impl AsRef<OsStr>) {
    // Safety: `gpu` is called before there is a second thread that could read the environment.
    unsafe { std::env::set_var(name, value) }
}
