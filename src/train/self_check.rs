//! Does a device compute what the processor computes?

use super::module::Module;
use crate::artifacts::{Loss, Options, generate};
use crate::backend::{Backend, cpu::Cpu};
use crate::checkpoint::CheckpointState;
use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Attributes, Graph, Node, TensorType, ValueId};
use crate::onnx::{NoExternalData, read};
use crate::tensor::{DType, Tensor};

/// How far a number may be from the processor's, as a fraction of the largest one beside it. Devices add in other orders
/// and have other functions for exp and log; faults are larger by far.
const TOLERANCE: f64 = 1e-3;

const BATCH: usize = 4;
const SIDE: usize = 9;
const CHANNELS: usize = 5;
const CLASSES: usize = 7;

/// Runs a train step of a small convolutional classifier on a device and on the processor, and compares loss and gradients.
///
/// # Errors
/// `Device` if they differ, or if the device cannot run the step; it says what it was.
pub async fn self_check<B: Backend + Clone>(device: &B) -> Result<()> {
    let failed = |e: crate::error::Error| err!(Device, "the device does not pass the self-check: {e}");
    let (training, state) = model()?;
    let image = numbers(&[BATCH, 1, SIDE, SIDE], 1.0)?;
    let labels: Vec<i64> = (0..BATCH).map(|i| (i * 3 % CLASSES) as i64).collect();
    let labels = Tensor::new(&[BATCH], &labels)?;
    let feeds = [&image, &labels];

    let mut wanted = Module::new(training.clone(), None, &state, Cpu)?;
    let wanted_loss = wanted.train_step(&feeds)?;
    let mut found = Module::new(training, None, &state, device.clone()).map_err(failed)?;
    let found_loss = found.train_step_async(&feeds).await.map_err(failed)?;
    compare("the loss", &[found_loss.into()], &[wanted_loss.into()])?;
    for parameter in state.parameters() {
        let name = &parameter.name;
        let gradient = found.gradient_async(name).await.map_err(failed)?;
        compare(&format!("the gradient of {name}"), &gradient.to_f64s(), &wanted.gradient(name)?.to_f64s())?;
    }
    Ok(())
}

fn compare(what: &str, found: &[f64], wanted: &[f64]) -> Result<()> {
    let most = wanted.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (found, wanted) in found.iter().zip(wanted) {
        let near = (found - wanted).abs() <= TOLERANCE * most; // never of NaN
        if !near {
            bail!(
                Device,
                "the device does not pass the self-check: {what} is {found}, not {wanted} as on the processor"
            );
        }
    }
    Ok(())
}

/// The training model of convolution, activation, pooling and a layer, with its parameters.
fn model() -> Result<(Graph, CheckpointState)> {
    let mut graph = Graph::new("self-check", 17);
    let image = graph.add_input("image", TensorType::known(DType::F32, &[BATCH, 1, SIDE, SIDE]))?;
    let half = SIDE / 2;
    let mut weight = |name: &str, shape: &[usize]| graph.add_initializer(name, numbers(shape, 0.4)?);
    let kernel = weight("conv.weight", &[CHANNELS, 1, 3, 3])?;
    let conv_bias = weight("conv.bias", &[CHANNELS])?;
    let matrix = weight("fc.weight", &[CLASSES, CHANNELS * half * half])?;
    let bias = weight("fc.bias", &[CLASSES])?;

    let ints = |name: &str, list: &[i64]| (name.to_owned(), Attribute::Ints(list.to_vec()));
    let x = add(&mut graph, "Conv", &[image, kernel, conv_bias], [ints("pads", &[1, 1, 1, 1])])?;
    let x = add(&mut graph, "Tanh", &[x], [])?;
    let x = add(&mut graph, "MaxPool", &[x], [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])])?;
    let x = add(&mut graph, "Flatten", &[x], [])?;
    let scores = add(&mut graph, "Gemm", &[x, matrix, bias], [("transB".to_owned(), Attribute::Int(1))])?;
    graph.outputs.push(scores);

    let options = Options { requires_grad: vec!["*".into()], loss: Loss::cross_entropy(), ..Options::default() };
    let files = generate(&graph, &options)?;
    Ok((read(&files.training_model, &NoExternalData)?, CheckpointState::from_bytes(&files.checkpoint)?))
}

/// Adds a node; gives its output.
fn add<const N: usize>(
    graph: &mut Graph,
    op_type: &str,
    inputs: &[ValueId],
    attributes: [(String, Attribute); N],
) -> Result<ValueId> {
    let output = graph.add_value(op_type, None)?;
    graph.nodes.push(Node {
        name: op_type.into(),
        domain: String::new(),
        op_type: op_type.into(),
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(output)],
        attributes: Attributes::from(attributes),
    });
    Ok(output)
}

/// Numbers between -`size` and `size`, the same each time.
fn numbers(shape: &[usize], size: f32) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 + count) % 101) as f32 / 50.0 - 1.0).map(|x| x * size).collect();
    Tensor::new(shape, &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::now;
    use crate::error::Kind;
    use crate::kernel::RunContext;
    use crate::plan::{Layout, Output, Plan};

    #[test]
    fn the_processor_passes() {
        now(self_check(&Cpu)).unwrap();
    }

    /// The processor, with a fault in what it reads back.
    #[derive(Clone)]
    struct Faulty {
        loss: f32,
        gradients: f32,
    }

    impl Backend for Faulty {
        type Buffer = <Cpu as Backend>::Buffer;
        type Program = <Cpu as Backend>::Program;

        fn name(&self) -> &'static str {
            "faulty"
        }
        fn layout(&self) -> Layout {
            Cpu.layout()
        }
        fn alloc(&self, dtype: DType, len: usize) -> Result<Self::Buffer> {
            Cpu.alloc(dtype, len)
        }
        fn upload(&self, buffer: &Self::Buffer, bytes: &[u8]) -> Result<()> {
            Cpu.upload(buffer, bytes)
        }
        async fn download(&self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<()> {
            Cpu.download(buffer, bytes).await?;
            // One element of each tensor, the last.
            let at = bytes.len() - 4;
            let last = bytemuck::pod_read_unaligned::<f32>(&bytes[at..]);
            bytes[at..].copy_from_slice(&(last + self.gradients).to_le_bytes());
            Ok(())
        }
        async fn copy(&self, from: &Self::Buffer, to: &Self::Buffer) -> Result<()> {
            Cpu.copy(from, to).await
        }
        async fn compile(&self, plan: &Plan, inputs: &[Self::Buffer]) -> Result<Self::Program> {
            Cpu.compile(plan, inputs).await
        }
        async fn run(&self, program: &mut Self::Program, cx: &RunContext) -> Result<()> {
            Cpu.run(program, cx).await
        }
        async fn read(
            &self,
            program: &Self::Program,
            outputs: &[(String, Output)],
            tensors: &mut [Tensor],
        ) -> Result<()> {
            Cpu.read(program, outputs, tensors).await?;
            tensors[0].as_mut_slice::<f32>().expect("a loss")[0] += self.loss;
            Ok(())
        }
    }

    #[test]
    fn faults_are_found_and_named() {
        now(self_check(&Faulty { loss: 0.0, gradients: 0.0 })).unwrap();
        for (loss, gradients, words) in
            [(0.1, 0.0, "the loss is"), (f32::NAN, 0.0, "the loss is NaN"), (0.0, 0.01, "the gradient of conv.weight")]
        {
            let error = now(self_check(&Faulty { loss, gradients })).unwrap_err();
            assert_eq!(error.kind(), Kind::Device);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
