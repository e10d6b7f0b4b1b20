//! `cargo xtask node-suite`: ONNX's own test cases of its operators, forward and backward on a backend.
//!
//! A case is a folder with a model.onnx and `test_data_set_N/{input,output}_K.pb`. It counts when ontrain has all of its
//! operators and carries all of its types; any other is skipped, with the reason in the list that is written.

mod gradients;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ontrain::error::Kind;
use ontrain::graph::{Attribute, Graph, ValueId, ValueType};
use ontrain::onnx::{NoExternalData, read, read_file};
use ontrain::ops::{Entry, entries};
use ontrain::tensor::{DType, Tensor};

use crate::replay::engine::{Engine, Feed, Target, Where};
use crate::replay::guarded;
use crate::{setup, sh};

/// Run ONNX's node test cases of the operators that ontrain has; ends with one JSON line of counts
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder of cases, instead of those of the onnx package
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    place: Where,
    /// Also check gradients: on cpu in f64 against finite differences, elsewhere against the plain kernels
    #[arg(long)]
    grad: bool,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    filter: String,
}

/// Tolerances of ONNX's own runner.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let dir = self.dir.map_or_else(setup::node_suite, Ok)?;
        let mut engine = self.place.engine()?;
        let mut tally = Tally::default();
        for case in cases(&dir, &self.filter)? {
            let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let outcome =
                guarded(|| forward(&case, &mut *engine)).unwrap_or_else(|e| Forward::Failed(format!("{e:#}")));
            if self.grad && matches!(outcome, Forward::Passed) {
                let outcome = guarded(|| gradients::backward(&case, &mut *engine));
                tally.backward(&name, outcome.unwrap_or_else(|e| Backward::Failed(format!("{e:#}"))));
            }
            tally.forward(&name, outcome);
        }
        tally.finish(engine.name())
    }
}

/// The whole suite: natively with gradients, and on the npm package.
pub(crate) fn test() -> Result<()> {
    for (backend, grad) in [(Target::Cpu, true), (Target::Wasm, false)] {
        Args { dir: None, place: Where::at(backend), grad, filter: String::new() }.run()?;
    }
    Ok(())
}

/// What came of a case.
enum Forward {
    Passed,
    Failed(String),
    Skipped(String),
}

/// What came of its gradients.
enum Backward {
    Checked,
    Failed(String),
    /// There is no gradient to check.
    None(String),
}

/// Counts, and the list of names with reasons.
#[derive(Default)]
struct Tally {
    total: usize,
    passed: usize,
    failed: usize,
    skipped: usize,
    grad_checked: usize,
    grad_failed: usize,
    failures: String,
    others: String,
}

impl Tally {
    fn forward(&mut self, name: &str, outcome: Forward) {
        self.total += 1;
        match outcome {
            Forward::Passed => self.passed += 1,
            Forward::Failed(reason) => {
                self.failed += 1;
                line(&mut self.failures, "FAILED", name, &reason);
            }
            Forward::Skipped(reason) => {
                self.skipped += 1;
                line(&mut self.others, "skipped", name, &reason);
            }
        }
    }

    fn backward(&mut self, name: &str, outcome: Backward) {
        match outcome {
            Backward::Checked => self.grad_checked += 1,
            Backward::Failed(reason) => {
                self.grad_checked += 1;
                self.grad_failed += 1;
                line(&mut self.failures, "GRADIENT FAILED", name, &reason);
            }
            Backward::None(reason) => line(&mut self.others, "no gradient", name, &reason),
        }
    }

    /// Writes the list and the counts; fails if a case failed.
    fn finish(self, backend: &str) -> Result<()> {
        let list = sh::target().join(format!("node-suite-{backend}.txt"));
        sh::write_file(&list, [self.failures, self.others].concat())?;
        let counts = serde_json::json!({
            "backend": backend, "total": self.total, "passed": self.passed, "failed": self.failed,
            "skipped": self.skipped, "grad_checked": self.grad_checked, "grad_failed": self.grad_failed,
        });
        println!("{counts}");
        ensure!(self.failed + self.grad_failed == 0, "cases failed: their names and reasons are in {}", list.display());
        Ok(())
    }
}

fn line(list: &mut String, what: &str, name: &str, reason: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(list, "{what} {name}: {}", reason.replace('\n', " "));
}

/// The case folders in `dir`, sorted.
fn cases(dir: &Path, filter: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    let mut found: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    found.retain(|path| path.join("model.onnx").is_file() && path.to_string_lossy().contains(filter));
    ensure!(!found.is_empty(), "{} holds no case with {filter:?} in its name", dir.display());
    found.sort();
    Ok(found)
}

/// A case that can be run, or why it is skipped.
fn load(case: &Path) -> Result<Result<Graph, String>> {
    let graph = match read_file(case.join("model.onnx")) {
        Err(e) if e.kind() == Kind::Unsupported => return Ok(Err(e.to_string())),
        other => other?,
    };
    let missing = missing_operators(&graph);
    if !missing.is_empty() {
        return Ok(Err(missing.iter().map(|op| format!("operator {op}")).collect::<Vec<_>>().join(", ")));
    }
    let sequence = |id: &ValueId| matches!(graph.value(*id).ty, Some(ValueType::Sequence(_)));
    if graph.inputs.iter().chain(&graph.outputs).any(sequence) {
        return Ok(Err("sequences as inputs or outputs".into()));
    }
    // Types that ontrain does not carry, inside the graph: a Cast to strings, for example.
    let alien = graph.nodes.iter().find_map(|node| match node.attributes.get("to")? {
        Attribute::Int(to) => DType::from_onnx(i32::try_from(*to).ok()?).err(),
        _ => None,
    });
    Ok(match alien {
        Some(error) if error.kind() == Kind::Unsupported => Err(error.to_string()),
        _ => Ok(graph),
    })
}

/// The operators of a graph that ontrain does not have.
fn missing_operators(graph: &Graph) -> BTreeSet<String> {
    let unknown = graph.nodes.iter().filter(|node| entry(&node.domain, &node.op_type).is_none());
    unknown
        .map(|n| if n.domain.is_empty() { n.op_type.clone() } else { format!("{}.{}", n.domain, n.op_type) })
        .collect()
}

fn entry(domain: &str, op_type: &str) -> Option<&'static Entry> {
    entries().find(|e| e.domain == domain && e.name == op_type)
}

fn forward(case: &Path, engine: &mut dyn Engine) -> Result<Forward> {
    let graph = match load(case)? {
        Ok(graph) => graph,
        Err(reason) => return Ok(Forward::Skipped(reason)),
    };
    let model = sh::read_file(&case.join("model.onnx"))?;
    let sets = data_sets(case)?;
    ensure!(!sets.is_empty(), "the case has no data");
    for set in sets {
        let (inputs, expected) = match (tensors(&set, "input")?, tensors(&set, "output")?) {
            (Ok(inputs), Ok(outputs)) => (inputs, outputs),
            (Err(reason), _) | (_, Err(reason)) => return Ok(Forward::Skipped(reason)),
        };
        let feed = feed(&graph, inputs)?;
        let found = engine.forward(&model, &feed)?;
        if let Err(reason) = compare(&graph, &found, &expected) {
            if random(&graph, &feed, &found)? {
                same_types(&graph, &found, &expected).map_err(anyhow::Error::msg)?;
                continue;
            }
            return Ok(Forward::Failed(reason));
        }
    }
    Ok(Forward::Passed)
}

fn data_sets(case: &Path) -> Result<Vec<PathBuf>> {
    let mut sets: Vec<PathBuf> = std::fs::read_dir(case)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    sets.retain(|path| {
        path.is_dir() && path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("test_data_set_"))
    });
    sets.sort();
    Ok(sets)
}

/// The tensors `{kind}_0.pb`, `{kind}_1.pb`, …; or what about them ontrain does not carry.
fn tensors(set: &Path, kind: &str) -> Result<Result<Vec<Tensor>, String>> {
    let mut tensors = Vec::new();
    loop {
        let file = set.join(format!("{kind}_{}.pb", tensors.len()));
        if !file.is_file() {
            return Ok(Ok(tensors));
        }
        match tensor(&sh::read_file(&file)?) {
            Ok(tensor) => tensors.push(tensor),
            Err(e) if e.kind() == Kind::Unsupported => return Ok(Err(e.to_string())),
            Err(e) => return Err(e).with_context(|| format!("reading {}", file.display())),
        }
    }
}

/// A tensor from a serialized TensorProto: read as the only initializer of a model made around it.
fn tensor(proto: &[u8]) -> ontrain::error::Result<Tensor> {
    // Field numbers of onnx.proto; the last name wins.
    let named = [proto, &field(8, b"x")].concat();
    let graph = field(5, &named);
    let opset = field(8, &[0x10, 13]);
    let model = [&[0x08, 8][..], &field(7, &graph), &opset].concat();
    let graph = read(&model, &NoExternalData)?;
    match graph.initializers.first() {
        Some((_, tensor)) => Ok((**tensor).clone()),
        None => Err(ontrain::error::err!(Load, "no tensor in the file")),
    }
}

/// A length-delimited protobuf field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend(bytes);
    out
}

/// The inputs by name.
fn feed(graph: &Graph, tensors: Vec<Tensor>) -> Result<Feed> {
    let names = graph.inputs.iter().map(|id| graph.name_of(*id).to_owned());
    let feed: Feed = names.zip(tensors.iter().cloned()).collect();
    ensure!(feed.len() == tensors.len(), "{} inputs for a model of {}", tensors.len(), graph.inputs.len());
    Ok(feed)
}

fn compare(graph: &Graph, found: &[Tensor], expected: &[Tensor]) -> Result<(), String> {
    same_types(graph, found, expected)?;
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let name = graph.name_of(graph.outputs[i]);
        if !found.dtype().is_float() {
            if found != expected {
                return Err(format!("output \"{name}\" is {found:?}, expected {expected:?}"));
            }
            continue;
        }
        for (at, (&a, &b)) in found.to_f64s().iter().zip(&expected.to_f64s()).enumerate() {
            let near = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= ABSOLUTE + RELATIVE * b.abs();
            if !near {
                return Err(format!("output \"{name}\"[{at}] is {a}, expected {b}"));
            }
        }
    }
    Ok(())
}

fn same_types(graph: &Graph, found: &[Tensor], expected: &[Tensor]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} outputs, expected {}", found.len(), expected.len()));
    }
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
            let (name, show) = (graph.name_of(graph.outputs[i]), |t: &Tensor| format!("{}{:?}", t.dtype(), t.shape()));
            return Err(format!("output \"{name}\" is {}, expected {}", show(found), show(expected)));
        }
    }
    Ok(())
}

/// Do the outputs depend on random numbers? Then another seed gives others, and only types can be compared.
fn random(graph: &Graph, feed: &Feed, first: &[Tensor]) -> Result<bool> {
    let mut session = ontrain::train::Session::new(graph.clone(), ontrain::backend::cpu::Cpu);
    session.set_seed(0x5EED);
    let names = session.input_names();
    let inputs: Vec<&Tensor> = names.iter().filter_map(|name| feed.get(name)).collect();
    let again = session.run(&inputs)?.to_vec();
    session.set_seed(0xBEEF);
    Ok(session.run(&inputs)? != again && again.len() == first.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_files() {
        // dims 2, data type 1 (float), raw_data 1.0 and -2.0.
        let mut proto = vec![0x08, 2, 0x10, 1];
        proto.extend(field(9, &[1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat()));
        let tensor = tensor(&proto).unwrap();
        assert_eq!((tensor.shape(), tensor.as_slice::<f32>()), (&[2][..], Some(&[1.0, -2.0][..])));
    }
}
