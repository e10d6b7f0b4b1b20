//! Plans: what they look like, and that their memory is sound.

use crate::support::{CASES, Case, case, fixture, floats, model, options, parse, start};
use ontrain::artifacts::{Loss, generate};
use ontrain::backend::cpu::Cpu;
use ontrain::checkpoint::CheckpointState;
use ontrain::graph::ValueId;
use ontrain::kernel::{BufferId, Kernel, View};
use ontrain::passes::sequences;
use ontrain::plan::{Layout, Output, Placement, Plan, PlanInput, build};
use ontrain::tensor::{DType, Tensor, known_shape};
use ontrain::train::Module;

/// The plan as text is that of tests/fixtures/plans. `ONTRAIN_UPDATE_PLANS=1` writes the files anew.
#[track_caller]
fn snapshot(name: &str, plan: &Plan) {
    let path = fixture("plans").join(format!("{name}.txt"));
    let text = plan.to_string();
    if std::env::var_os("ONTRAIN_UPDATE_PLANS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        return std::fs::write(path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    if wanted != text {
        let differ = wanted.lines().zip(text.lines()).position(|(a, b)| a != b);
        let line = differ.unwrap_or(wanted.lines().count().min(text.lines().count()));
        panic!(
            "the plan differs from {} from line {} on; if it is meant to, run with ONTRAIN_UPDATE_PLANS=1\n- {}\n+ {}",
            path.display(),
            line + 1,
            wanted.lines().nth(line).unwrap_or_default(),
            text.lines().nth(line).unwrap_or_default()
        );
    }
}

#[test]
fn plan_of_an_mlp() {
    let case = case("mlp");
    let (mut module, _) = case.start();
    let plan = module.plan(true, &case.inputs()).unwrap();
    snapshot("mlp_train", plan);
    // Two products forward and three backward (the input needs no gradient): 2 m n k each.
    let products = 5 * 16 * 33 * 2 + 5 * 33 * 10 * 3;
    assert!(plan.flops >= 2 * products && plan.flops < 3 * products, "{} FLOP, products {}", plan.flops, 2 * products);
    let gemms = plan.steps.iter().filter(|s| matches!(s.kernel, Kernel::Gemm(_))).count();
    assert_eq!(gemms, 5);
    // Softmax, loss and their gradient are a few kernels, not one per operator.
    let fused = plan.steps.iter().filter_map(|s| if let Kernel::Fused(k) = &s.kernel { Some(k) } else { None });
    assert!(fused.map(|k| k.program.arithmetic()).max().unwrap() >= 5);
    snapshot("mlp_eval", module.plan(false, &case.inputs()).unwrap());
}

/// The plan of an optimizer step over the trainable parameters of a case.
fn optimizer_plan(case: &Case) -> Plan {
    let mut graph = parse(case.artifacts.optimizer_model.as_ref().unwrap());
    let state = CheckpointState::from_bytes(&case.artifacts.checkpoint).unwrap();
    let trained = state.parameters().iter().filter(|p| p.requires_grad);
    let shapes: Vec<Vec<usize>> = trained.map(|p| p.value.as_ref().unwrap().shape().to_vec()).collect();
    sequences::expand(&mut graph, &shapes, DType::F32).unwrap();
    let input = |id: &ValueId| {
        let ty = graph.tensor_type(*id).unwrap();
        PlanInput { dtype: ty.dtype, shape: known_shape(ty.shape.as_ref().unwrap()).unwrap(), value: None }
    };
    build(&graph, &graph.inputs.iter().map(input).collect::<Vec<_>>(), &Layout::HOST).unwrap()
}

#[test]
fn plan_of_an_optimizer() {
    let case = case("mlp");
    let plan = optimizer_plan(&case);
    snapshot("mlp_adamw", &plan);
    // The coefficients once; then four tensors, each updated with its two moments in one kernel.
    assert_eq!(plan.steps.len(), 5);
    assert!(plan.steps.iter().all(|s| s.writes.len() == 3));
}

#[test]
fn plan_of_a_conv_net() {
    let case = case("bnnet");
    let (mut module, _) = case.start();
    snapshot("bnnet_train", module.plan(true, &case.inputs()).unwrap());
    snapshot("bnnet_eval", module.plan(false, &case.inputs()).unwrap());
}

/// Other sizes are another plan of the same kernels; the memory grows with the batch.
#[test]
fn memory_grows_with_the_batch() {
    let case = case("lenet");
    let (mut module, _) = case.start();
    let mut peak = |batch: usize| {
        let inputs = [floats(&[batch, 1, 28, 28], 1), Tensor::ints(&vec![0; batch])];
        let plan = module.plan(true, &inputs.iter().collect::<Vec<_>>()).unwrap();
        (plan.peak_bytes(), plan.flops, plan.steps.len())
    };
    let (small, large) = (peak(4), peak(16));
    // Activations grow with the batch, gradients of weights do not.
    assert!(large.0 > 2 * small.0 && large.0 < 4 * small.0, "{small:?} {large:?}");
    assert!(large.1 > 3 * small.1 && large.1 <= 4 * small.1, "{small:?} {large:?}");
    assert_eq!(small.2, large.2);
}

/// The bytes of the arena that a view may touch.
fn arena(plan: &Plan, view: &View) -> Option<(usize, usize)> {
    let Placement::Arena { offset, .. } = plan.buffers[view.buffer.index()] else { return None };
    let (low, high) = view.span()?;
    let size = view.dtype.size();
    Some((offset + low * size, offset + (high + 1) * size))
}

fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// Runs the plan in mind: who last wrote each part of the arena? A step that reads a buffer which another has
/// written over, or which nobody has written, finds someone else's numbers.
fn replay(name: &str, plan: &Plan) {
    let mut alive: Vec<(BufferId, (usize, usize))> = Vec::new();
    let check = |alive: &[(BufferId, (usize, usize))], view: &View, who: &str| {
        let Some(bytes) = arena(plan, view) else { return };
        let written = alive.iter().any(|(id, part)| *id == view.buffer && overlap(*part, bytes));
        assert!(written, "{name}: {who} reads buffer {} that is not there (any more)", view.buffer.0);
    };
    for (i, step) in plan.steps.iter().enumerate() {
        let who = format!("step {i} of {}", step.from);
        for view in step.reads.iter().chain(&step.writes) {
            let Some((_, end)) = arena(plan, view) else { continue };
            let Placement::Arena { offset, bytes, .. } = plan.buffers[view.buffer.index()] else { continue };
            assert!(offset % 64 == 0 && offset + bytes <= plan.peak_bytes(), "{name}: {who}");
            assert!(end <= offset + bytes, "{name}: {who} leaves its buffer");
        }
        for read in &step.reads {
            check(&alive, read, &who);
        }
        for write in &step.writes {
            let Some(bytes) = arena(plan, write) else { continue };
            for read in &step.reads {
                if arena(plan, read).is_some_and(|r| overlap(r, bytes)) {
                    let same = read.shape == write.shape
                        && read.strides == write.strides
                        && arena(plan, read) == arena(plan, write)
                        && read.dtype.size() == write.dtype.size();
                    let elementwise = matches!(step.kernel, Kernel::Fused(_));
                    assert!(same && elementwise, "{name}: {who} writes over what it reads, and not in place");
                }
            }
            for other in step.writes.iter().filter(|o| o.buffer != write.buffer) {
                assert!(!arena(plan, other).is_some_and(|o| overlap(o, bytes)), "{name}: {who} writes twice");
            }
            // Whoever lay there is gone, whole: a buffer of which a part is lost is lost.
            let mine = write.buffer;
            let lost: Vec<BufferId> =
                alive.iter().filter(|(id, part)| *id != mine && overlap(*part, bytes)).map(|(id, _)| *id).collect();
            alive.retain(|(id, _)| !lost.contains(id));
            alive.push((mine, bytes));
        }
    }
    for (output, place) in &plan.outputs {
        if let Output::View(view) = place {
            check(&alive, view, &format!("output {output}"));
        }
    }
}

/// The most bytes that are alive at one step, counted from first and last use.
fn live(plan: &Plan) -> usize {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    for (i, step) in plan.steps.iter().enumerate() {
        for view in step.reads.iter().chain(&step.writes) {
            lives[view.buffer.index()].get_or_insert((i, i)).1 = i;
        }
    }
    for (_, output) in &plan.outputs {
        if let Output::View(view) = output
            && let Some(life) = &mut lives[view.buffer.index()]
        {
            life.1 = plan.steps.len();
        }
    }
    let at = |step: usize| {
        let bytes = |(placement, life): (&Placement, &Option<(usize, usize)>)| match (placement, life) {
            (Placement::Arena { bytes, .. }, Some((first, last))) if (*first..=*last).contains(&step) => *bytes,
            _ => 0,
        };
        plan.buffers.iter().zip(&lives).map(bytes).sum()
    };
    (0..=plan.steps.len()).map(at).max().unwrap_or(0)
}

/// Checks the plans of both models of a module.
fn sound(name: &str, module: &mut Module<Cpu>, inputs: &[&Tensor]) {
    for training in [true, false] {
        let plan = module.plan(training, inputs).unwrap();
        let name = format!("{name}, {}", if training { "training" } else { "eval" });
        replay(&name, plan);
        let live = live(plan);
        // In place is better than disjoint, packing a little worse than perfect.
        assert!(plan.peak_bytes() <= live + live / 4 + 8192, "{name}: {} bytes for {live} alive", plan.peak_bytes());
    }
}

#[test]
fn no_two_live_buffers_share_memory() {
    for name in CASES {
        let case = case(name);
        let (mut module, _) = case.start();
        sound(name, &mut module, &case.inputs());
        replay(&format!("{name}, optimizer"), &optimizer_plan(&case));
    }
}

/// The same for models of PyTorch's that are not trained elsewhere in these tests.
#[test]
fn plans_of_torch_models_are_sound() {
    for (name, shape, outputs) in [
        ("convnext_micro", [2, 3, 32, 32].as_slice(), 10),
        ("resnet_micro", &[2, 3, 32, 32], 10),
        ("lenet_bn", &[2, 1, 28, 28], 10),
        ("conv3d_micro", &[2, 1, 8, 8, 8], 4),
        ("mlp_gelu_ln", &[2, 64], 10),
        ("tcn", &[2, 4, 24], 5),
    ] {
        let graph = model(&format!("torch/{name}/model.ts17train.onnx"));
        let artifacts = generate(&graph, &options(Loss::MSELoss(Default::default()))).unwrap();
        let (mut module, _) = start(&artifacts);
        sound(name, &mut module, &[&floats(shape, 1), &floats(&[2, outputs], 2)]);
    }
}
