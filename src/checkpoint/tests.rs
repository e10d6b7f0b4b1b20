//! The fixtures are files that ONNX Runtime 1.19.2 wrote; the numbers were read with Python from
//! the models and from the traces' `final_params_*.npz`.

use super::schema::{self, Checkpoint, ModuleState};
use super::*;
use crate::error::Kind;
use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../../tests/fixtures/checkpoint/", $name)).as_slice()
    };
}

const FRESH: &[u8] = fixture!("reg_mse");
const ADAMW: &[u8] = fixture!("reg_mse_after_adamw");
const SGD: &[u8] = fixture!("reg_mse_after_sgd");
const SGD_WITHOUT_OPTIMIZER: &[u8] = fixture!("reg_mse_after_sgd_without_optimizer");
const BATCH_NORM: &[u8] = fixture!("bnnet");
const NOMINAL: &[u8] = fixture!("mlp_nominal");

fn state(bytes: &[u8]) -> CheckpointState {
    CheckpointState::from_bytes(bytes).unwrap()
}

fn values<'a>(state: &'a CheckpointState, name: &str) -> &'a [f32] {
    state.parameter(name).unwrap().value.as_ref().unwrap().as_slice().unwrap()
}

/// Name, shape, first and last value of each parameter.
fn assert_holds(state: &CheckpointState, expected: &[(&str, &[usize], f32, f32)]) {
    let names: Vec<_> = state.parameters().iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, expected.iter().map(|e| e.0).collect::<Vec<_>>());
    for &(name, shape, first, last) in expected {
        let values = values(state, name);
        assert_eq!(state.parameter(name).unwrap().value.as_ref().unwrap().shape(), shape, "{name}");
        assert_eq!((values[0], values[values.len() - 1]), (first, last), "{name}");
    }
}

#[test]
fn fresh_file_keeps_the_order_of_the_model() {
    let state = state(FRESH);
    assert_holds(
        &state,
        &[
            ("fc1.weight", &[32, 8], 0.024693964, 0.20033884),
            ("fc1.bias", &[32], 0.09599556, -0.34053043),
            ("fc2.weight", &[32, 32], 0.111346975, -0.09276049),
            ("fc2.bias", &[32], 0.12351667, 0.08026003),
            ("fc3.weight", &[1, 32], -0.15811603, -0.035074227),
            ("fc3.bias", &[1], -0.0844036, -0.0844036),
        ],
    );
    assert!(state.parameters().iter().all(|p| p.requires_grad && p.dtype == DType::F32));
    assert!(state.optimizer.is_none() && state.properties().is_empty() && !state.is_nominal());
}

#[test]
fn trained_files_hold_parameters_optimizer_and_properties() {
    let adamw = state(ADAMW);
    assert_holds(
        &adamw,
        &[
            ("fc1.bias", &[32], 0.058370084, -0.28506455),
            ("fc1.weight", &[32, 8], 0.055665173, 0.14425157),
            ("fc2.bias", &[32], 0.105513945, 0.059439972),
            ("fc2.weight", &[32, 32], 0.060658835, -0.08481272),
            ("fc3.bias", &[1], -0.079720445, -0.079720445),
            ("fc3.weight", &[1, 32], -0.10494838, -0.06608441),
        ],
    );
    let sgd = state(SGD);
    assert_eq!(values(&sgd, "fc3.bias"), [-0.015872043]);
    for (state, momentums) in [(&adamw, &["momentum0", "momentum1"][..]), (&sgd, &["momentum0"])] {
        assert_eq!(state.property("epoch"), Some(&Property::Int(3)));
        assert_eq!(state.property("best"), Some(&Property::Float(0.125)));
        assert_eq!(state.property("note"), Some(&Property::String("hello".into())));
        assert_eq!(state.property("other"), None);
        let optimizer = state.optimizer.as_ref().unwrap();
        assert_eq!((optimizer.group_name.as_str(), optimizer.step), (OptimizerState::GROUP, 50));
        assert_eq!(optimizer.initial_learning_rate, 1e-3);
        assert_eq!(optimizer.states.len(), 6);
        for (of, parameter) in optimizer.states.iter().zip(state.parameters()) {
            assert_eq!(of.param_name, parameter.name);
            assert_eq!(of.momentums.iter().map(|m| m.0.as_str()).collect::<Vec<_>>(), momentums);
            let shape = parameter.value.as_ref().unwrap().shape();
            assert!(of.momentums.iter().all(|m| m.1.shape() == shape));
        }
    }
    let second = &adamw.optimizer.as_ref().unwrap().states[0].momentums[1].1;
    assert!(second.to_f64s().iter().all(|&v| v > 0.0), "second moments are means of squares");
}

#[test]
fn frozen_parameters_and_running_statistics() {
    let state = state(BATCH_NORM);
    assert_holds(
        &state,
        &[
            ("conv.weight", &[6, 2, 3, 3], -0.019759089, 0.10054777),
            ("bn.weight", &[6], 1.1641437, 1.479934),
            ("bn.bias", &[6], 0.17999919, -0.059962846),
            ("fc.weight", &[4, 6], -0.13611126, 0.003913167),
            ("fc.bias", &[4], -0.09720302, -0.26954097),
            ("bn.running_mean", &[6], 0.032973982, -0.0062688827),
            ("bn.running_var", &[6], 0.88958985, 1.0648928),
        ],
    );
    assert!(state.parameters().iter().all(|p| p.requires_grad != p.name.contains("running")));
}

#[test]
fn what_ort_wrote_comes_out_byte_for_byte() {
    for bytes in [FRESH, ADAMW, SGD, SGD_WITHOUT_OPTIMIZER, BATCH_NORM, NOMINAL] {
        let again = state(bytes).to_bytes(true).unwrap();
        assert_eq!(state(&again), state(bytes));
        // An empty list of optimizers says no more than no list.
        if bytes != SGD_WITHOUT_OPTIMIZER {
            assert!(again == bytes, "{} bytes became {}", bytes.len(), again.len());
        }
    }
    assert!(state(SGD).to_bytes(false).unwrap() == SGD_WITHOUT_OPTIMIZER);
    assert!(state(FRESH).to_nominal().to_bytes(true).unwrap().len() < 400);
}

#[test]
fn a_trained_state_is_written_by_name() {
    let mut fresh = state(FRESH);
    fresh.optimizer = state(ADAMW).optimizer;
    fresh.optimizer.as_mut().unwrap().states.reverse();
    let again = state(&fresh.to_bytes(true).unwrap());
    let names: Vec<_> = again.parameters().iter().map(|p| p.name.clone()).collect();
    assert!(names.is_sorted(), "{names:?}");
    assert_eq!(again.optimizer, state(ADAMW).optimizer);
}

#[test]
fn every_dtype_rank_and_property_survives() {
    let mut all: Vec<_> = DType::ALL
        .iter()
        .map(|&dtype| {
            let value = Tensor::from_f64s(dtype, &[2, 1, 2], &[1.0, 0.0, 1.0, 0.0]).unwrap();
            Parameter::new(format!("of.{dtype}"), value, dtype.is_float())
        })
        .collect();
    all.sort_by_key(|p| !p.requires_grad);
    all.push(Parameter::new("scalar", Tensor::scalar(2.5f64), false));
    all.push(Parameter::new("empty", Tensor::zeros(DType::F32, &[3, 0]).unwrap(), false));
    let mut state = CheckpointState::new(all).unwrap();
    state.add_property("größe", i64::MIN);
    state.add_property("zero", 0);
    state.add_property("not a number", f32::NEG_INFINITY);
    state.add_property("", "");
    let error = CheckpointState::from_bytes(&state.to_bytes(false).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the checkpoint holds a property without a name");
    state.properties.remove("");
    state.add_property("text", "\0é");
    assert_eq!(CheckpointState::from_bytes(&state.to_bytes(false).unwrap()).unwrap(), state);
    let empty = CheckpointState::default();
    assert_eq!(CheckpointState::from_bytes(&empty.to_bytes(true).unwrap()).unwrap(), empty);
}

#[test]
fn nominal_is_filled_parameter_by_parameter() {
    let mut nominal = state(NOMINAL);
    let names: Vec<_> = nominal.parameters().iter().map(|p| p.name.clone()).collect();
    assert_eq!(names, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
    for (n, name) in names.iter().enumerate() {
        assert!(nominal.is_nominal());
        if n > 0 {
            assert_eq!(nominal.to_bytes(false).unwrap_err().kind(), Kind::State);
        }
        let wrong = nominal.set_parameter(name, Tensor::scalar(1i64)).unwrap_err();
        assert_eq!((wrong.kind(), wrong.place()), (Kind::Input, Some(format!("parameter \"{name}\"").as_str())));
        nominal.set_parameter(name, Tensor::new(&[n], &vec![1.0f32; n]).unwrap()).unwrap();
    }
    assert!(!nominal.is_nominal());
    assert_eq!(state(&nominal.to_bytes(false).unwrap()), nominal);
    assert!(nominal.to_nominal() == state(NOMINAL));
}

#[test]
fn set_parameter_checks_name_dtype_and_shape() {
    let mut state = state(FRESH);
    let error = |state: &mut CheckpointState, name: &str, value| {
        let error = state.set_parameter(name, value).unwrap_err();
        assert_eq!(error.kind(), Kind::Input);
        error.to_string()
    };
    let one = Tensor::new(&[1], &[7.0f32]).unwrap();
    assert_eq!(error(&mut state, "fc9", one.clone()), "the checkpoint has no parameter named \"fc9\"");
    let text = "parameter \"fc1.bias\": shape differs; expected [32]; found [1]";
    assert_eq!(error(&mut state, "fc1.bias", one.clone()), text);
    let text = "parameter \"fc3.bias\": dtype differs; expected float32; found int64";
    assert_eq!(error(&mut state, "fc3.bias", Tensor::ints(&[1])), text);
    state.set_parameter("fc3.bias", one).unwrap();
    assert_eq!(values(&state, "fc3.bias"), [7.0]);
    let twice = vec![state.parameters[0].clone(), state.parameters[0].clone()];
    assert_eq!(CheckpointState::new(twice).unwrap_err().kind(), Kind::Checkpoint);
    state.parameter_mut("fc3.bias").unwrap().name = "fc1.bias".into();
    assert_eq!(state.to_bytes(false).unwrap_err().to_string(), "two parameters are named \"fc1.bias\"");
}

/// What hand-made files say of a tensor.
#[derive(Clone, Copy)]
struct Raw<'a> {
    name: &'a str,
    dims: &'a [i64],
    data_type: i32,
    data: &'a [u8],
    offset: i64,
}

const FOUR: Raw = Raw { name: "w", dims: &[4], data_type: 2, data: &[1, 2, 3, 4], offset: -1 };

/// A checkpoint file that need not make sense. `share` lets all tensors point at one `data`.
fn file(version: i32, external: bool, tensors: &[Raw], share: bool) -> Vec<u8> {
    let mut b = FlatBufferBuilder::new();
    let shared = share.then(|| b.create_vector(tensors[0].data));
    let tensors: Vec<WIPOffset<TableFinishedWIPOffset>> = tensors
        .iter()
        .map(|t| {
            let name = b.create_string(t.name);
            let dims = b.create_vector(t.dims);
            let data = shared.unwrap_or_else(|| b.create_vector(t.data));
            let start = b.start_table();
            b.push_slot_always(schema::Tensor::NAME, name);
            b.push_slot_always(schema::Tensor::DIMS, dims);
            b.push_slot(schema::Tensor::DATA_TYPE, t.data_type, 0);
            b.push_slot(schema::Tensor::EXTERNAL_DATA_OFFSET, t.offset, -1);
            if t.offset < 0 {
                b.push_slot_always(schema::Tensor::RAW_DATA, data);
            }
            WIPOffset::new(b.end_table(start).value())
        })
        .collect();
    let trainable = b.create_vector(&tensors);
    let frozen = b.create_vector::<WIPOffset<TableFinishedWIPOffset>>(&[]);
    let start = b.start_table();
    b.push_slot_always(ModuleState::REQUIRES_GRAD_PARAMS, trainable);
    b.push_slot_always(ModuleState::FROZEN_PARAMS, frozen);
    b.push_slot(ModuleState::HAS_EXTERNAL_DATA, external, false);
    let module = b.end_table(start);
    let start = b.start_table();
    b.push_slot(Checkpoint::VERSION_SLOT, version, 0);
    b.push_slot_always(Checkpoint::MODULE_STATE, module);
    let root = b.end_table(start);
    b.finish(root, Some(schema::IDENTIFIER));
    b.finished_data().to_vec()
}

#[test]
fn contradictions_are_named() {
    let error = |bytes: &[u8]| {
        let error = CheckpointState::from_bytes(bytes).unwrap_err();
        (error.kind(), error.to_string())
    };
    let one = |tensor| error(&file(2, false, &[tensor], false));
    assert!(CheckpointState::from_bytes(&file(1, false, &[FOUR], false)).is_ok());
    let text = "checkpoint version; expected 1 or 2; found 3".to_string();
    assert_eq!(error(&file(3, false, &[FOUR], false)), (Kind::Unsupported, text));
    let text = "parameter \"w\": the name is in the checkpoint twice".to_string();
    assert_eq!(error(&file(2, false, &[FOUR, FOUR], false)), (Kind::Checkpoint, text));
    let (kind, text) = error(&file(2, true, &[Raw { offset: 0, ..FOUR }], false));
    assert!(kind == Kind::Unsupported && text.contains(".data file"), "{text}");
    let text = "parameter \"w\": data does not fill a uint8 tensor of [5]; expected 5 bytes; found 4 bytes".to_string();
    assert_eq!(one(Raw { dims: &[5], ..FOUR }), (Kind::Checkpoint, text));
    let text = "parameter \"w\": a dimension that is no size; found -4".to_string();
    assert_eq!(one(Raw { dims: &[-4], ..FOUR }), (Kind::Checkpoint, text));
    assert_eq!(one(Raw { dims: &[i64::MAX, i64::MAX], ..FOUR }).0, Kind::Checkpoint);
    let text = "parameter \"w\": a bool element; expected 0 or 1; found 2".to_string();
    assert_eq!(one(Raw { data_type: 9, ..FOUR }), (Kind::Checkpoint, text));
    let text = "parameter \"w\": tensors of string elements (ONNX data type 8)".to_string();
    assert_eq!(one(Raw { data_type: 8, ..FOUR }), (Kind::Unsupported, text));
    assert_eq!(one(Raw { data_type: 0, ..FOUR }).0, Kind::Checkpoint);
    assert_eq!(one(Raw { data_type: 99, ..FOUR }).0, Kind::Checkpoint);
    assert_eq!(one(Raw { name: "", ..FOUR }).1, "the checkpoint holds a parameter without a name");
    assert_eq!(one(Raw { offset: 0, ..FOUR }).0, Kind::Checkpoint);
    assert_eq!(error(b"").1, "not a checkpoint file; expected the identifier \"ODTC\" at offset 4; found 0 bytes");
    assert_eq!(error(b"\x08\0\0\0ORTM\0\0\0\0").0, Kind::Load);
}

/// Many tensors that point at the same bytes would make memory of a small file's square.
#[test]
fn shared_bytes_do_not_multiply() {
    let data = vec![1; 10_000];
    let names: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let tensors: Vec<_> = names.iter().map(|name| Raw { name, dims: &[10_000], data: &data, ..FOUR }).collect();
    let error = CheckpointState::from_bytes(&file(2, false, &tensors, true)).unwrap_err();
    assert_eq!(error.kind(), Kind::Checkpoint);
    assert!(CheckpointState::from_bytes(&file(2, false, &tensors, false)).is_ok());
}

/// Either a state that can be written and read again, or an error of one of three kinds.
fn assert_survives(bytes: &[u8]) -> bool {
    match CheckpointState::from_bytes(bytes) {
        Ok(state) => {
            let again = CheckpointState::from_bytes(&state.to_bytes(true).unwrap()).unwrap();
            let sorted = |state: &CheckpointState| {
                let mut parameters = state.parameters().to_vec();
                parameters.sort_by(|x, y| x.name.cmp(&y.name));
                parameters
            };
            assert_eq!(sorted(&again), sorted(&state));
            true
        }
        Err(e) => {
            assert!(matches!(e.kind(), Kind::Load | Kind::Checkpoint | Kind::Unsupported), "{e:?}");
            false
        }
    }
}

#[test]
fn truncation_at_every_length_is_an_error() {
    for bytes in [FRESH, SGD, BATCH_NORM, NOMINAL] {
        // The last bytes may be padding behind the last string.
        for len in 0..bytes.len() - 4 {
            assert!(!assert_survives(&bytes[..len]), "{len} of {} bytes", bytes.len());
        }
        for len in bytes.len() - 4..bytes.len() {
            assert_survives(&bytes[..len]);
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

#[test]
fn flipped_and_random_bytes_never_panic() {
    let mut random = Random(1);
    let mut refused = 0;
    for round in 0..20_000 {
        let bytes = [BATCH_NORM, NOMINAL, SGD, ADAMW][round % 4];
        // Structure stands in the front and around the tensors; aim at the front every other time.
        let range = if round % 8 < 4 { bytes.len() } else { 300.min(bytes.len()) };
        let mut bytes = bytes.to_vec();
        for _ in 0..1 + random.below(4) {
            let at = random.below(range);
            bytes[at] = match random.below(3) {
                0 => bytes[at] ^ (1 << random.below(8)),
                1 => [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                _ => random.below(256) as u8,
            };
        }
        refused += !assert_survives(&bytes) as usize;
    }
    assert!(refused > 5_000, "flips reach the structure: {refused}");
    for _ in 0..5_000 {
        let mut bytes: Vec<u8> = (0..random.below(300)).map(|_| random.below(256) as u8).collect();
        if let Some(head) = bytes.get_mut(..8) {
            head.copy_from_slice(b"\x08\0\0\0ODTC");
            head[0] = random.below(64) as u8;
        }
        assert_survives(&bytes);
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod files {
    use super::super::file::replace;
    use super::*;
    use std::fs;
    use std::io::{self, Write};
    use std::path::PathBuf;

    /// A folder of its own for a test, gone afterwards.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ontrain-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = entries.collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn save_and_load() {
        let folder = Folder::new("save");
        let path = folder.0.join("checkpoint");
        for bytes in [FRESH, ADAMW] {
            state(bytes).save(&path, true).unwrap();
            assert_eq!(CheckpointState::load(&path).unwrap(), state(bytes));
            assert_eq!(folder.names(), ["checkpoint"]);
        }
        let error = CheckpointState::load(folder.0.join("other")).unwrap_err();
        assert_eq!(error.kind(), Kind::Load);
        assert!(error.to_string().contains("other"), "{error}");
    }

    #[test]
    fn failing_writer_leaves_the_old_file() {
        let folder = Folder::new("fail");
        let path = folder.0.join("checkpoint");
        fs::write(&path, FRESH).unwrap();
        let error = replace(&path, |file| {
            file.write_all(&ADAMW[..1000])?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(error.unwrap_err().kind(), Kind::Device);
        assert_eq!(fs::read(&path).unwrap(), FRESH);
        assert_eq!(folder.names(), ["checkpoint"]);
    }

    #[test]
    fn vanished_folder_and_things_that_are_no_files() {
        let folder = Folder::new("vanished");
        let inner = folder.0.join("inner");
        let error = write_atomically(inner.join("checkpoint"), FRESH).unwrap_err();
        assert_eq!(error.kind(), Kind::Device);
        assert!(!inner.exists());
        fs::create_dir(&inner).unwrap();
        assert!(write_atomically(&inner, FRESH).unwrap_err().to_string().contains("not a plain file"));
        // The folder goes while the file is being written: the rename fails.
        let error = replace(&inner.join("checkpoint"), |_| fs::remove_dir_all(&inner));
        assert_eq!(error.unwrap_err().kind(), Kind::Device);
        assert!(folder.names().is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = Folder::new("link");
        let (path, link) = (folder.0.join("checkpoint"), folder.0.join("link"));
        fs::write(&path, b"old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        write_atomically(&link, FRESH).unwrap();
        assert_eq!(fs::read(&path).unwrap(), FRESH);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    /// Run by the next test in a process of its own.
    #[test]
    #[ignore = "saves until it is killed"]
    fn save_forever() {
        let Some(path) = std::env::var_os("ONTRAIN_TEST_SAVE_TO") else { return };
        let states = [state(FRESH), state(ADAMW)];
        loop {
            for state in &states {
                if let Err(e) = state.save(&path, true) {
                    panic!("saving failed: {e}");
                }
            }
        }
    }

    #[cfg(unix)]
    fn saver(path: &PathBuf, before: &str) -> std::process::Child {
        let test = std::env::current_exe().unwrap();
        std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("{before}; exec \"$0\" --exact checkpoint::tests::files::save_forever --ignored"))
            .arg(test)
            .env("ONTRAIN_TEST_SAVE_TO", path)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn killed_while_saving() {
        let folder = Folder::new("kill");
        let path = folder.0.join("checkpoint");
        for round in 0..12 {
            fs::write(&path, FRESH).unwrap();
            let mut child = saver(&path, ":");
            // Not before it has begun, which takes the second state to be there once.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while fs::read(&path).unwrap() != ADAMW {
                assert!(std::time::Instant::now() < deadline, "the saving process does not save");
            }
            std::thread::sleep(std::time::Duration::from_micros(700 * round));
            child.kill().unwrap();
            child.wait().unwrap();
            let bytes = fs::read(&path).unwrap();
            assert!(bytes == FRESH || bytes == ADAMW, "neither state, whole: {} bytes", bytes.len());
        }
    }

    /// A limit on the size of files stands in for a full disk: writing stops in the middle of the
    /// larger state, with an error or, where the signal is not ignored, by the end of the process.
    #[cfg(unix)]
    #[test]
    fn no_space_while_saving() {
        let folder = Folder::new("full");
        let path = folder.0.join("checkpoint");
        for before in ["trap '' XFSZ; ulimit -f 16", "ulimit -f 16"] {
            fs::write(&path, b"old").unwrap();
            let status = saver(&path, before).wait().unwrap();
            assert!(!status.success());
            assert_eq!(fs::read(&path).unwrap(), FRESH, "the smaller state fitted, the larger one did not");
            if before.starts_with("trap") {
                assert_eq!(folder.names(), ["checkpoint"], "a failure cleans up");
            }
        }
    }

    #[test]
    fn tensors_in_a_data_file() {
        let written_by_ort = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/checkpoint/external");
        assert_holds(
            &CheckpointState::load(written_by_ort).unwrap(),
            &[("v", &[1], 1.0, 1.0), ("w", &[2, 1], 1.5, -2.0)],
        );
        let folder = Folder::new("data");
        let path = folder.0.join("checkpoint");
        let save = |tensors: &[Raw]| fs::write(&path, file(2, true, tensors, false)).unwrap();
        let two = [FOUR, Raw { name: "v", dims: &[2, 1], data_type: 1, offset: 8, ..FOUR }];
        save(&two);
        let error = CheckpointState::load(&path).unwrap_err();
        assert!(error.kind() == Kind::Load && error.to_string().contains("checkpoint.data"), "{error}");
        let mut data = vec![0; 8];
        data.extend([1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()));
        fs::write(folder.0.join("checkpoint.data"), &data).unwrap();
        let state = CheckpointState::load(&path).unwrap();
        assert_eq!(state.parameter("w").unwrap().value, Some(Tensor::new(&[4], &[1u8, 2, 3, 4]).unwrap()));
        assert_eq!(state.parameter("v").unwrap().value, Some(Tensor::new(&[2, 1], &[1.5f32, -2.0]).unwrap()));
        // Beyond the end, larger than the file, and the same bytes again and again.
        save(&[Raw { offset: 14, ..FOUR }]);
        assert_eq!(CheckpointState::load(&path).unwrap_err().kind(), Kind::Load);
        save(&[Raw { offset: 0, dims: &[1 << 40], ..FOUR }]);
        assert_eq!(CheckpointState::load(&path).unwrap_err().kind(), Kind::Checkpoint);
        let names: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        let many: Vec<_> = names.iter().map(|name| Raw { name, offset: 0, dims: &[12], ..FOUR }).collect();
        save(&many);
        assert_eq!(CheckpointState::load(&path).unwrap_err().kind(), Kind::Checkpoint);
    }
}
