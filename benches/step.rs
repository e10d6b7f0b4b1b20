//! Times training steps natively, for `cargo xtask bench`, which writes the folder that this program is given:
//! artifacts, `inputs.txt` and the inputs, `matmul.onnx` with its own.
//!
//! It answers each line of standard input by a line: `steps N` by the milliseconds of N steps, `rate` by the GFLOP/s of a
//! large matrix product, run once. The other programs that `cargo xtask bench` starts (ort.py, node.mjs, chromium.mjs) do the same. Cores:
//! `RAYON_NUM_THREADS`.

use std::error::Error;
use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ontrain::backend::cpu::Cpu;
use ontrain::checkpoint::CheckpointState;
use ontrain::onnx::read_file;
use ontrain::tensor::{DType, Tensor};
use ontrain::train::{Module, Optimizer, Session};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    // Cargo adds --bench.
    let Some(folder) = std::env::args().skip(1).find(|word| word != "--bench").map(PathBuf::from) else {
        println!("this is run by `cargo xtask bench`");
        return Ok(());
    };
    let mut training = Training::load(&folder)?;
    let mut product = Product::load(&folder)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = match line.split_once(' ') {
            Some(("steps", count)) => training.steps(count.parse()?)?,
            None if line == "rate" => product.rate()?.to_string(),
            _ => return Err(format!("there is no command {line:?}").into()),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

struct Training {
    module: Module<Cpu>,
    optimizer: Optimizer<Cpu>,
    inputs: Vec<Tensor>,
}

impl Training {
    fn load(folder: &Path) -> Result<Self> {
        let state = CheckpointState::from_bytes(&fs::read(folder.join("checkpoint"))?)?;
        let module = Module::new(read_file(folder.join("training_model.onnx"))?, None, &state, Cpu)?;
        let optimizer = Optimizer::new(read_file(folder.join("optimizer_model.onnx"))?, &module, &state)?;
        let inputs = named(inputs(folder, "inputs")?, &module.input_names(true)?)?;
        Ok(Self { module, optimizer, inputs })
    }

    /// Milliseconds of each of `count` steps, with spaces between.
    fn steps(&mut self, count: usize) -> Result<String> {
        let inputs: Vec<&Tensor> = self.inputs.iter().collect();
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            self.module.train_step(&inputs)?;
            self.optimizer.step(&mut self.module)?;
            self.module.lazy_reset_grad();
            times.push(format!("{:.5}", start.elapsed().as_secs_f64() * 1e3));
        }
        Ok(times.join(" "))
    }
}

/// The large matrix product of matmul.onnx; matmul.flop holds its number of operations.
struct Product {
    session: Session<Cpu>,
    inputs: Vec<Tensor>,
    operations: f64,
}

impl Product {
    fn load(folder: &Path) -> Result<Self> {
        let session = Session::new(read_file(folder.join("matmul.onnx"))?, Cpu);
        let inputs = named(inputs(folder, "matmul")?, &session.input_names())?;
        let operations = fs::read_to_string(folder.join("matmul.flop"))?.trim().parse()?;
        Ok(Self { session, inputs, operations })
    }

    /// GFLOP/s of one run.
    fn rate(&mut self) -> Result<f64> {
        let inputs: Vec<&Tensor> = self.inputs.iter().collect();
        let start = Instant::now();
        self.session.run(&inputs)?;
        Ok(self.operations / start.elapsed().as_secs_f64() / 1e9)
    }
}

/// The tensors that `list`.txt names: a line `file dtype sizes name` each.
fn inputs(folder: &Path, list: &str) -> Result<Vec<(String, Tensor)>> {
    let text = fs::read_to_string(folder.join(format!("{list}.txt")))?;
    text.lines()
        .map(|line| {
            let [file, dtype, sizes, name] = line.splitn(4, ' ').collect::<Vec<_>>()[..] else {
                return Err(format!("{list}.txt: {line:?}").into());
            };
            let dtype = DType::ALL.into_iter().find(|d| d.name() == dtype).ok_or("unknown dtype")?;
            let shape = sizes.split('x').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
            Ok((name.to_owned(), Tensor::from_bytes(dtype, &shape, &fs::read(folder.join(file))?)?))
        })
        .collect()
}

/// The tensors in the order of `names`.
fn named(mut tensors: Vec<(String, Tensor)>, names: &[String]) -> Result<Vec<Tensor>> {
    let mut take = |name: &String| {
        let at = tensors.iter().position(|(known, _)| known == name).ok_or(format!("no input {name:?}"))?;
        Ok(tensors.swap_remove(at).1)
    };
    names.iter().map(&mut take).collect()
}
