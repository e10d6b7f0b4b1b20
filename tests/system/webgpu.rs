//! What only a GPU can get wrong: training like the CPU, without making anything anew; errors that the device finds later; and
//! the ends of its memory and of its life.

use crate::support::{CASES, Case, case, devices, expect, floats, indices, parse};
use ontrain::backend::webgpu::{Counters, Options as GpuOptions, WebGpu};
use ontrain::backend::{Any, Backend, cpu::Cpu, now};
use ontrain::checkpoint::CheckpointState;
use ontrain::error::Kind;
use ontrain::tensor::{DType, Tensor};
use ontrain::train::{Module, Optimizer};

/// The GPUs of this machine, by name.
fn gpus() -> impl Iterator<Item = (&'static WebGpu, &'static str)> {
    devices().iter().filter_map(|(device, name)| match device {
        Any::WebGpu(gpu) => Some((gpu, *name)),
        Any::Cpu(_) => None,
    })
}

fn start_on<B: Backend>(case: &Case, state: &CheckpointState, device: B) -> (Module<B>, Optimizer<B>) {
    let artifacts = &case.artifacts;
    let eval = Some(parse(&artifacts.eval_model));
    let module = Module::new(parse(&artifacts.training_model), eval, state, device).unwrap();
    let optimizer = Optimizer::new(parse(artifacts.optimizer_model.as_ref().unwrap()), &module, state).unwrap();
    (module, optimizer)
}

fn initial(case: &Case) -> CheckpointState {
    CheckpointState::from_bytes(&case.artifacts.checkpoint).unwrap()
}

/// Losses of some steps, and all parameters after them.
fn train<B: Backend>(case: &Case, module: &mut Module<B>, optimizer: &mut Optimizer<B>, steps: usize) -> Vec<f32> {
    (0..steps)
        .map(|_| {
            let loss = module.train_step(&case.inputs()).unwrap();
            optimizer.step(module).unwrap();
            module.lazy_reset_grad();
            loss
        })
        .collect()
}

fn parameters<B: Backend>(module: &Module<B>) -> Vec<(String, Tensor)> {
    module.parameter_names().map(|name| (name.to_owned(), module.parameter(name).unwrap())).collect()
}

/// The greatest difference of two lists of parameters, against the greatest value.
fn distance(a: &[(String, Tensor)], b: &[(String, Tensor)]) -> f64 {
    let numbers = |p: &[(String, Tensor)]| p.iter().flat_map(|(_, t)| t.to_f64s()).collect::<Vec<f64>>();
    let (a, b) = (numbers(a), numbers(b));
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
    a.iter().zip(&b).fold(0.0, |m: f64, (x, y)| m.max((x - y).abs())) / scale
}

#[test]
fn trains_like_the_cpu() {
    for name in CASES {
        let case = case(name);
        let state = initial(&case);
        let (mut module, mut optimizer) = start_on(&case, &state, Cpu);
        let wanted = train(&case, &mut module, &mut optimizer, 4);
        let last = parameters(&module);
        let eval = module.eval_step(&case.inputs()).unwrap();
        for (gpu, device) in gpus() {
            let (mut module, mut optimizer) = start_on(&case, &state, gpu.clone());
            let losses = train(&case, &mut module, &mut optimizer, 4);
            for (got, want) in losses.iter().zip(&wanted) {
                assert!((got - want).abs() <= 2e-4 * want.abs(), "{name} on {device}: {losses:?}, the CPU {wanted:?}");
            }
            let error = distance(&parameters(&module), &last);
            assert!(error < 2e-3, "{name} on {device}: parameters differ by {error}");
            let got = module.eval_step(&case.inputs()).unwrap();
            assert!((got - eval).abs() <= 1e-3 * eval.abs(), "{name} on {device}: eval {got}, the CPU {eval}");
        }
    }
}

/// Where no buffer holds all temporaries of a step they lie in several.
#[test]
fn small_buffers() {
    for (name, largest_buffer) in [("mobilenet", 480 << 10), ("transformer", 24 << 10)] {
        let case = case(name);
        let state = initial(&case);
        let (mut module, mut optimizer) = start_on(&case, &state, Cpu);
        let wanted = train(&case, &mut module, &mut optimizer, 3);
        for (gpu, device) in gpus() {
            let options = GpuOptions { f16: gpu.has_f16(), software: Some(gpu.is_software()), largest_buffer };
            let (mut module, mut optimizer) = start_on(&case, &state, now(WebGpu::open_with(options)).unwrap());
            let arenas = module.plan(true, &case.inputs()).unwrap().arenas.clone();
            assert!(arenas.len() > 1, "{name} on {device}: {arenas:?}");
            assert!(arenas.iter().all(|a| a.bytes <= largest_buffer), "{name} on {device}: {arenas:?}");
            let losses = train(&case, &mut module, &mut optimizer, 3);
            for (got, want) in losses.iter().zip(&wanted) {
                assert!((got - want).abs() <= 2e-4 * want.abs(), "{name} on {device}: {losses:?}, the CPU {wanted:?}");
            }
        }
    }
}

/// One submission a step, optimizer included, and nothing made or mapped unless the loss is read.
#[test]
fn a_steady_step_makes_nothing() {
    for name in ["mlp", "bnnet", "transformer"] {
        let case = case(name);
        for (gpu, device) in gpus() {
            // A device of its own, which no other test makes count.
            let options = GpuOptions { f16: gpu.has_f16(), software: Some(gpu.is_software()), ..GpuOptions::default() };
            let gpu = now(WebGpu::open_with(options)).unwrap();
            let (mut module, mut optimizer) = start_on(&case, &initial(&case), gpu.clone());
            let step = |module: &mut Module<WebGpu>, optimizer: &mut Optimizer<WebGpu>| {
                now(module.start_train_step(&case.inputs())).unwrap();
                optimizer.step(module).unwrap();
                module.lazy_reset_grad();
            };
            step(&mut module, &mut optimizer);
            let first = now(module.loss_async()).unwrap();
            step(&mut module, &mut optimizer);
            let before = gpu.counters();
            for _ in 0..5 {
                step(&mut module, &mut optimizer);
            }
            let after = gpu.counters();
            let submissions = before.submissions + 5;
            assert!(after.dispatches > before.dispatches);
            assert_eq!(after, Counters { submissions, dispatches: after.dispatches, ..before }, "{name} on {device}");
            let last = now(module.loss_async()).unwrap();
            let read = gpu.counters();
            assert_eq!(
                read,
                Counters { submissions: submissions + 1, maps: after.maps + 1, ..after },
                "{name} on {device}"
            );
            assert!(last < first, "{name} on {device}: {first}, then {last}");
        }
    }
}

/// A label out of range is reported as on the CPU, and leaves parameters, statistics and optimizer as they were, also when
/// nobody waited for the step.
#[test]
fn labels_out_of_range() {
    let case = case("bnnet");
    let state = initial(&case);
    let bad = {
        let mut labels = case.inputs[1].to_i64s().unwrap();
        labels[2] = 77;
        [case.inputs[0].clone(), Tensor::new(case.inputs[1].shape(), &labels).unwrap()]
    };
    let bad: Vec<&Tensor> = bad.iter().collect();
    let (mut module, mut optimizer) = start_on(&case, &state, Cpu);
    let error = module.train_step(&bad).unwrap_err();
    let wanted = train(&case, &mut module, &mut optimizer, 3);
    for (gpu, device) in gpus() {
        let (mut module, mut optimizer) = start_on(&case, &state, gpu.clone());
        let before = parameters(&module);
        assert_eq!(module.train_step(&bad).unwrap_err(), error, "{device}");
        assert_eq!(parameters(&module), before, "{device}");
        let losses = train(&case, &mut module, &mut optimizer, 3);
        for (got, want) in losses.iter().zip(&wanted) {
            assert!((got - want).abs() <= 2e-4 * want.abs(), "{device}: {losses:?}, the CPU {wanted:?}");
        }
        // The same, with more work behind it.
        let before = parameters(&module);
        now(module.start_train_step(&bad)).unwrap();
        optimizer.step(&mut module).unwrap();
        now(module.start_train_step(&case.inputs())).unwrap();
        optimizer.step(&mut module).unwrap();
        assert_eq!(now(module.loss_async()).unwrap_err(), error, "{device}");
        assert_eq!(parameters(&module), before, "{device}");
        let next = train(&case, &mut module, &mut optimizer, 1)[0];
        assert!(next < losses[2], "{device}: {losses:?}, then {next}");
    }
}

#[test]
fn a_loss_that_is_not_finite() {
    let case = case("regression");
    let state = initial(&case);
    let huge = Tensor::from_f64s(DType::F32, &[5, 1], &[1e30; 5]).unwrap();
    let inputs = [&case.inputs[0], &huge];
    let error = start_on(&case, &state, Cpu).0.train_step(&inputs).unwrap_err();
    for (gpu, device) in gpus() {
        let (mut module, mut optimizer) = start_on(&case, &state, gpu.clone());
        let before = parameters(&module);
        assert_eq!(module.train_step(&inputs).unwrap_err(), error, "{device}");
        now(module.start_train_step(&inputs)).unwrap();
        optimizer.step(&mut module).unwrap();
        expect(now(module.loss_async()), Kind::State, &["inf", "step 2"]);
        assert_eq!(parameters(&module), before, "{device}");
        // Another call than the one for the loss may be told; the next step does not add to what was dropped.
        let alike = module.train_step(&case.inputs()).unwrap();
        let gradient = module.gradient("fc1.bias").unwrap();
        now(module.start_train_step(&inputs)).unwrap();
        expect(module.parameter("fc1.bias"), Kind::State, &["inf"]);
        assert_eq!(module.train_step(&case.inputs()).unwrap(), alike, "{device}");
        assert_eq!(module.gradient("fc1.bias").unwrap(), gradient, "{device}");
        module.set_non_finite(ontrain::train::NonFinite::Return);
        assert!(!module.train_step(&inputs).unwrap().is_finite(), "{device}");
    }
}

#[test]
fn a_checkpoint_moves_between_devices() {
    let case = case("lenet");
    let (mut module, mut optimizer) = start_on(&case, &initial(&case), Cpu);
    let wanted = train(&case, &mut module, &mut optimizer, 4);
    for (gpu, device) in gpus() {
        let mut state = initial(&case);
        let (mut module, mut optimizer) = start_on(&case, &state, gpu.clone());
        train(&case, &mut module, &mut optimizer, 2);
        module.save_parameters(&mut state).unwrap();
        optimizer.save(module.backend(), &mut state).unwrap();
        let state = CheckpointState::from_bytes(&state.to_bytes(true).unwrap()).unwrap();
        let (mut module, mut optimizer) = start_on(&case, &state, Cpu);
        let losses = train(&case, &mut module, &mut optimizer, 2);
        for (got, want) in losses.iter().zip(&wanted[2..]) {
            assert!((got - want).abs() <= 2e-4 * want.abs(), "{device}: {losses:?}, the CPU {wanted:?}");
        }
    }
}

/// Every call fails with a word, and the state that was saved goes on elsewhere.
#[test]
fn a_lost_device() {
    let case = case("mlp");
    let Ok(gpu) = now(WebGpu::open()) else { return };
    let mut state = initial(&case);
    let (mut module, mut optimizer) = start_on(&case, &state, gpu.clone());
    train(&case, &mut module, &mut optimizer, 2);
    module.save_parameters(&mut state).unwrap();
    optimizer.save(module.backend(), &mut state).unwrap();
    now(module.start_train_step(&case.inputs())).unwrap();
    gpu.destroy();
    let says = ["lost", "saved is intact"];
    expect(now(module.loss_async()), Kind::Device, &says);
    expect(module.train_step(&case.inputs()), Kind::Device, &says);
    expect(optimizer.step(&mut module), Kind::Device, &says);
    expect(module.parameter("fc1.weight"), Kind::Device, &says);
    expect(gpu.alloc(DType::F32, 4).map(|_| ()), Kind::Device, &says);
    let mut copy = state.clone();
    expect(module.save_parameters(&mut copy), Kind::Device, &says);
    let (mut module, mut optimizer) = start_on(&case, &state, Cpu);
    train(&case, &mut module, &mut optimizer, 1);
    let (mut module, mut optimizer) = start_on(&case, &state, now(WebGpu::open()).unwrap());
    train(&case, &mut module, &mut optimizer, 1);
}

/// Its memory goes after the commands that use it, and nobody else notices.
#[test]
fn a_module_dropped_in_mid_step() {
    let case = case("mlp");
    for (gpu, _) in gpus() {
        let (mut kept, mut optimizer) = start_on(&case, &initial(&case), gpu.clone());
        for _ in 0..3 {
            let (mut module, _) = start_on(&case, &initial(&case), gpu.clone());
            now(module.start_train_step(&case.inputs())).unwrap();
            drop(module);
            train(&case, &mut kept, &mut optimizer, 1);
        }
    }
}

/// A tensor that no buffer of the GPU holds is an error before anything runs, at the node that makes it.
#[test]
fn tensors_over_the_limit() {
    for (gpu, _) in gpus() {
        let piece = gpu.layout().piece;
        expect(gpu.alloc(DType::F32, piece / 4 + 1).map(|_| ()), Kind::Device, &[&piece.to_string()]);
        let n = 1 + (piece as f64 / 4.0).sqrt() as usize;
        let mut net = crate::support::Net::new(17);
        let x = net.input("x", DType::F32, &[None, Some(1)]);
        let w = net.weight("w", &[1, n]);
        let y = net.op("MatMul", &[x, w], &[], "wide");
        let y = net.op("ReduceSum", &[y], &[], "sum");
        let mut session = ontrain::train::Session::new(net.output(y), gpu.clone());
        expect(session.run(&[&floats(&[n, 1], 1)]), Kind::Plan, &["node/wide", &piece.to_string()]);
        session.run(&[&floats(&[3, 1], 1)]).unwrap();
    }
}

/// Positions beyond the reach of a shader's checks: an index out of range names itself.
#[test]
fn indices_out_of_range() {
    let case = case("transformer");
    for (gpu, device) in gpus() {
        let (mut module, _) = start_on(&case, &initial(&case), gpu.clone());
        let mut tokens = indices(&[5, 12], 20, 1).to_i64s().unwrap();
        tokens[7] = 20;
        let tokens = Tensor::new(&[5, 12], &tokens).unwrap();
        let got = module.train_step(&[&tokens, &case.inputs[1]]).unwrap_err();
        let (mut module, _) = start_on(&case, &initial(&case), Cpu);
        let want = module.train_step(&[&tokens, &case.inputs[1]]).unwrap_err();
        assert_eq!(got, want, "{device}");
    }
}
