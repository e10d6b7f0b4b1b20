//! The same inputs give the same bits, whatever the number of threads; random masks follow seed and step.

use crate::support::{CASES, Net, case, floats, options, start, with_threads};
use ontrain::artifacts::{Loss, generate};
use ontrain::backend::cpu::Cpu;
use ontrain::graph::{Attribute, Graph};
use ontrain::tensor::{DType, Tensor};
use ontrain::train::Module;

/// Losses, gradients and parameters of a few steps, as bytes.
fn trace(name: &'static str, threads: usize) -> Vec<(String, Vec<u8>)> {
    let case = case(name);
    let inputs = case.inputs();
    let (mut module, mut optimizer) = case.start();
    let names: Vec<String> = module.parameter_names().map(str::to_owned).collect();
    let trained = |module: &Module<Cpu>, name: &str| module.gradient(name).ok();
    let mut seen = Vec::new();
    with_threads(threads, || {
        for step in 0..3 {
            let loss = module.train_step(&inputs).unwrap();
            seen.push((format!("{name}, step {step}: loss"), loss.to_le_bytes().to_vec()));
            for p in &names {
                if let Some(gradient) = trained(&module, p) {
                    seen.push((format!("{name}, step {step}: gradient of {p}"), gradient.bytes().to_vec()));
                }
            }
            optimizer.step(&mut module).unwrap();
            for p in &names {
                seen.push((format!("{name}, step {step}: {p}"), module.parameter(p).unwrap().bytes().to_vec()));
            }
            if step == 1 {
                module.lazy_reset_grad(); // the third step starts anew, the second one accumulates
            }
        }
        let loss = module.eval_step(&inputs).unwrap();
        seen.push((format!("{name}: eval loss"), loss.to_le_bytes().to_vec()));
    });
    seen
}

#[test]
fn threads_do_not_show() {
    for name in CASES {
        let one = trace(name, 1);
        for threads in [1, 2, 3] {
            let other = trace(name, threads);
            assert_eq!(one.len(), other.len());
            for ((what, a), (_, b)) in one.iter().zip(&other) {
                assert!(a == b, "{what} differs between 1 and {threads} threads");
            }
        }
        assert!(one.iter().filter(|(what, _)| what.contains("gradient")).any(|(_, b)| b.iter().any(|&x| x != 0)));
    }
}

/// loss = sum(Dropout(w * x)): with x and w positive the gradient of w is `x * mask`, the output `w * x * mask`.
fn dropout() -> Graph {
    let mut net = Net::new(17);
    let x = net.input("x", DType::F32, &[Some(40), Some(50)]);
    let w = net.constant("w", Tensor::new(&[40, 50], &[1f32; 2000]).unwrap());
    let (ratio, on) =
        (net.constant("ratio", Tensor::scalar(0.3f32)), net.constant("on", Tensor::from_bools(&[], &[true]).unwrap()));
    let y = net.op("Mul", &[x, w], &[], "product");
    let y = net.op("Dropout", &[y, ratio, on], &[], "dropped");
    let loss = net.op("ReduceSum", &[y], &[("keepdims", Attribute::Int(0))], "loss");
    net.output(loss)
}

/// The dropped output and the gradient of each of three steps.
fn masks(seed: u64) -> Vec<(Vec<f64>, Vec<f64>)> {
    let mut options = options(Loss::None);
    options.requires_grad = vec!["w".into()];
    options.additional_output_names = vec!["dropped".into()];
    let artifacts = generate(&dropout(), &options).unwrap();
    let (mut module, _) = start(&artifacts);
    module.set_seed(seed);
    let x = Tensor::new(&[40, 50], &[1f32; 2000]).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        module.train_step(&[&x]).unwrap();
        seen.push((module.outputs()[1].to_f64s(), module.gradient("w").unwrap().to_f64s()));
        module.lazy_reset_grad();
    }
    assert_eq!(module.eval_step(&[&x]).unwrap(), 2000.0, "evaluation drops nothing");
    seen
}

#[test]
fn dropout_masks_follow_seed_and_step() {
    let (a, b, other) = (masks(1), masks(1), masks(2));
    assert!(a == b, "one seed, one mask");
    for step in 0..3 {
        let (forward, backward) = &a[step];
        assert!(forward == backward, "the gradient passes where the value did");
        let kept = forward.iter().filter(|&&v| v != 0.0).count();
        assert!((1300..1500).contains(&kept), "{kept} of 2000 kept at ratio 0.3");
        assert!(forward.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.7).abs() < 1e-6));
        assert!(a[step] != other[step], "another seed, another mask");
        for earlier in 0..step {
            assert!(a[step] != a[earlier], "another step, another mask");
        }
    }
}

/// Two Dropout nodes of one model draw different masks.
#[test]
fn dropout_nodes_differ() {
    let mut net = Net::new(17);
    let x = net.input("x", DType::F32, &[Some(500)]);
    let w = net.constant("w", Tensor::new(&[500], &[1f32; 500]).unwrap());
    let (ratio, on) =
        (net.constant("ratio", Tensor::scalar(0.5f32)), net.constant("on", Tensor::from_bools(&[], &[true]).unwrap()));
    let y = net.op("Mul", &[x, w], &[], "product");
    let a = net.op("Dropout", &[y, ratio, on], &[], "a");
    let b = net.op("Dropout", &[y, ratio, on], &[], "b");
    let sum = net.op("Add", &[a, b], &[], "sum");
    let loss = net.op("ReduceSum", &[sum], &[("keepdims", Attribute::Int(0))], "loss");
    let mut options = options(Loss::None);
    options.additional_output_names = vec!["a".into(), "b".into()];
    let (mut module, _) = start(&generate(&net.output(loss), &options).unwrap());
    module.train_step(&[&floats(&[500], 4)]).unwrap();
    let outputs = module.outputs();
    assert!(outputs[1].bytes() != outputs[2].bytes());
}
