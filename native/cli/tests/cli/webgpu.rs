//! Training on the GPU, where there is one, and what is said where there is none.

use crate::support::*;

const TRAIN: &[&str] = &["train", "--artifacts", "a", "--data", "data.npz", "--save", "c", "--epochs", "2", "--json"];

#[test]
fn the_gpu_trains_like_the_processor() {
    let folder = prepared("webgpu");
    let losses = |device: &str| -> Option<Vec<f64>> {
        let ran = ontrain(&folder, &[TRAIN, &["--device", device]].concat());
        if device == "webgpu" && ran.code == Some(1) && ran.stderr.contains("there is no WebGPU adapter") {
            assert!(std::env::var_os("ONTRAIN_NEED_WEBGPU").is_none(), "{}", ran.stderr);
            return None;
        }
        let epochs = ran.ok().events("epoch");
        assert_eq!(epochs.len(), 2);
        Some(epochs.iter().map(|e| e["loss"].as_f64().unwrap()).collect())
    };
    let cpu = losses("cpu").unwrap();
    let Some(gpu) = losses("webgpu") else { return };
    for (got, want) in gpu.iter().zip(&cpu) {
        assert!((got - want).abs() < 1e-4 * want, "{gpu:?}, the CPU {cpu:?}");
    }
}

#[test]
fn no_gpu() {
    let folder = prepared("no_webgpu");
    let ran = command(&folder, &[TRAIN, &["--device", "webgpu"]].concat())
        .env("VK_ICD_FILENAMES", "none.json")
        .env("VK_DRIVER_FILES", "none.json")
        .output()
        .unwrap();
    if cfg!(any(target_os = "macos", windows)) {
        return; // their drivers are not found by files
    }
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("Device") && stderr.contains("there is no WebGPU adapter"), "{stderr}");
    assert!(!folder.join("c").exists(), "nothing is written");
    let ran = ontrain(&folder, &[TRAIN, &["--device", "tpu"]].concat());
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("cpu, webgpu"), "{}", ran.stderr);
}
