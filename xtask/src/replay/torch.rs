//! Cases that PyTorch recorded: a model exported in two ways, and PyTorch's own answers. Each export is compared by its
//! outputs (run `FILE:forward`), loss and gradients (`FILE:grad`), running statistics (`FILE:bn`) and short trainings
//! (`FILE:OPTIMIZER`).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use ontrain::artifacts::{Optimizer, Options};
use ontrain::graph::{Attribute, Graph, Node};
use ontrain::onnx::{WriteOptions, read_file, write};
use ontrain::ops::resolve;
use ontrain::tensor::{DType, Tensor};
use serde_json::{Map, Value};

use super::data::{self, Arrays, number, numbers, strings};
use super::engine::{Engine, Feed, Rate, Trained, Training};
use super::losses::loss;
use super::nudge::{self, spread};
use super::verdict::{Verdict, elements, largest, norm};
use super::{Case, Report};

/// Gradients: of the largest true gradient of the parameter.
const GRADIENT: f64 = 1e-4;
/// Gradients that are zero but for rounding: of the largest of the model.
const ZERO_GRADIENT: f64 = 1e-5;
/// Losses and outputs, relative.
const LOSS: f64 = 1e-5;
/// Losses and norms of a training, relative.
const TRACE: f64 = 1e-4;

pub(super) fn replay(case: &Case<'_>, engine: &mut dyn Engine, report: &mut Report<'_>) {
    for label in ["ts17train", "dyn"].into_iter().filter(|label| case.trace[label].is_object()) {
        let export = || Export::load(case, label);
        report.run(&format!("{label}:forward"), "torch", || export()?.forward(engine));
        report.run(&format!("{label}:grad"), "torch", || export()?.gradients(engine));
        let (traces, statistics) = match export() {
            Ok(export) => (export.traces.clone(), export.statistics().next().is_some()),
            Err(_) => continue, // said by the runs above
        };
        if statistics {
            report.run(&format!("{label}:bn"), "torch", || export()?.running_statistics(engine));
        }
        for (name, trace) in &traces {
            match optimizer(&trace["options"]) {
                Some(optimizer) => {
                    let train = || export()?.train(trace, optimizer, engine);
                    report.run(&format!("{label}:{name}"), "torch", train);
                }
                None => eprintln!("{}: {label}:{name} is not run: ontrain has no such optimizer", report.case),
            }
        }
    }
}

/// The optimizer of a trace, if ontrain has it.
fn optimizer(options: &Value) -> Option<Optimizer> {
    let get = |key: &str| options.get(key).and_then(number);
    let known = |keys: &[&str]| options.as_object().is_some_and(|o| o.keys().all(|k| keys.contains(&k.as_str())));
    if known(&["lr"]) {
        return Some(Optimizer::SGD { clip_grad_norm: None });
    }
    if get("adam_mode") != Some(1.0) || !known(&["lr", "adam_mode", "betas", "eps", "weight_decay"]) {
        return None;
    }
    let betas = numbers(options.get("betas")?).ok()?;
    Some(Optimizer::AdamW {
        betas: (*betas.first()? as f32, *betas.get(1)? as f32),
        eps: get("eps")? as f32,
        weight_decay: get("weight_decay").unwrap_or(0.0) as f32,
        bias_correction: true,
        clip_grad_norm: None,
    })
}

/// How PyTorch's parameter lies in the file's initializer.
enum Layout {
    /// Element by element, whatever the shapes.
    Same,
    /// All axes reversed.
    Transposed,
    /// Element i of the parameter is element `map[i]` of the initializer.
    Gathered(Vec<usize>),
    /// Element j of the initializer is element `map[j]` of the parameter; the others are not in the file.
    Part(Vec<usize>),
}

/// A parameter of PyTorch's model in an export.
struct Parameter {
    /// PyTorch's name: that of gradients and norms.
    name: String,
    initializer: String,
    layout: Layout,
}

/// One of the two files of a case.
struct Export<'a> {
    case: &'a Case<'a>,
    model: Vec<u8>,
    parameters: Vec<Parameter>,
    /// A parameter vanished in the export, so that no training can be compared.
    incomplete: bool,
    golden: Arrays,
    golden64: Arrays,
    /// What is known of the gradients' accuracy.
    accuracy: &'a Value,
    traces: Map<String, Value>,
    feed: Feed,
    target: Tensor,
}

impl<'a> Export<'a> {
    fn load(case: &'a Case<'a>, label: &str) -> Result<Self> {
        let about = &case.trace[label];
        let file = about["file"].as_str().map_or_else(|| format!("model.{label}.onnx"), str::to_owned);
        let mut graph = read_file(case.file(&file))?;
        // Operators that ontrain lacks are named before anything else is tried.
        for node in &graph.nodes {
            resolve(&graph, node)?;
        }
        let folded = about["bn"].is_object();
        let (golden, golden64) = match folded {
            true => (case.file("golden_dyn.npz"), case.file("golden64_dyn.npz")),
            false => (case.file("golden.npz"), case.file("golden64.npz")),
        };
        let (golden, golden64) = (data::npz(&golden)?, data::npz(&golden64)?);
        let root = if folded { &about["bn"] } else { case.trace };
        let names: Vec<String> = golden64.keys().filter_map(|k| k.strip_prefix("grad/")).map(str::to_owned).collect();
        let (mut parameters, mut incomplete) = (Vec::new(), false);
        for name in names {
            let Some(entry) = about["params"].get(&name) else {
                parameters.push(Parameter { initializer: name.clone(), name, layout: Layout::Same });
                continue;
            };
            match layout(case, &name, entry)? {
                Some((initializer, layout)) => {
                    retie(&mut graph, &initializer, &strings(&entry["copies"])?)?;
                    parameters.push(Parameter { name, initializer, layout });
                }
                None => incomplete = true,
            }
        }
        let traces = if incomplete { Map::new() } else { root["traces"].as_object().cloned().unwrap_or_default() };
        let mut feed = Feed::new();
        let io = data::npz(&case.file("io.npz"))?;
        for (name, tensor) in &io {
            if let Some(input) = name.strip_prefix("in/") {
                feed.insert(input.to_owned(), tensor.clone());
            }
        }
        let target = io.get("target").context("io.npz has no target")?.clone();
        let model = write(&graph, &WriteOptions::default())?;
        Ok(Self {
            case,
            model,
            parameters,
            incomplete,
            golden,
            golden64,
            accuracy: &root["grad"],
            traces,
            feed,
            target,
        })
    }

    /// Inputs and targets of a train step.
    fn batch(&self) -> Result<Feed> {
        let mut batch = self.feed.clone();
        let (name, target) = match self.target.dtype() {
            dtype if dtype.is_float() => ("target", self.target.clone()),
            _ => ("labels", Tensor::from_f64s(DType::I64, self.target.shape(), &self.target.to_f64s())?),
        };
        batch.insert(name.into(), target);
        Ok(batch)
    }

    fn options(&self, optimizer: Option<Optimizer>) -> Result<Options> {
        let mut initializers: Vec<String> = self.parameters.iter().map(|p| p.initializer.clone()).collect();
        initializers.sort();
        initializers.dedup();
        let loss = loss(&self.case.trace["loss"], &self.target)?;
        Ok(Options { requires_grad: initializers, loss, optimizer, ..Options::default() })
    }

    /// The outputs of the exported model.
    fn forward(&self, engine: &mut dyn Engine) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        let found = engine.forward(&self.model, &self.feed)?;
        let known = number(&self.accuracy["out_rel_f32_vs_f64"]).filter(|x| x.is_finite()).unwrap_or(0.0);
        let outputs = self.golden64.iter().filter_map(|(k, v)| Some((k.strip_prefix("out/")?, v)));
        for ((name, expected), found) in outputs.zip(&found) {
            verdict.require(found.shape() == expected.shape(), || {
                format!("output {name} has the shape {:?}, expected {:?}", found.shape(), expected.shape())
            });
            let expected = expected.to_f64s();
            let tolerance = LOSS.max(10.0 * known) * largest(&expected).max(1.0);
            verdict.all_near(&format!("output {name}"), &found.to_f64s(), &expected, tolerance);
            verdict.steps += 1;
        }
        verdict.require(verdict.steps > 0, || "no output was compared".into());
        Ok(verdict)
    }

    /// Loss and gradients.
    fn gradients(&self, engine: &mut dyn Engine) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        let artifacts = engine.generate(&self.model, &self.options(None)?)?;
        let batches = [self.batch()?];
        let trained = engine.train(&training(&artifacts, &batches, 1, 0.0, false))?;
        if let Some(error) = trained.stopped {
            bail!(error);
        }
        verdict.steps = 1;
        let loss = trained.losses.first().copied().unwrap_or(f64::NAN);
        for golden in [&self.golden, &self.golden64] {
            let expected = golden.get("loss").context("no loss in the golden file")?.to_f64s()[0];
            verdict.near(|| "loss".into(), loss, expected, LOSS * expected.abs());
        }
        let zero = strings(&self.accuracy["zero_grad_params"])?;
        let most = number(&self.accuracy["max_abs_grad"]).filter(|x| x.is_finite());
        let most = most.unwrap_or_else(|| self.golden64.values().map(|t| largest(&t.to_f64s())).fold(0.0, f64::max));
        for p in &self.parameters {
            let gradient =
                trained.gradients.get(&p.initializer).with_context(|| format!("no gradient of {}", p.initializer))?;
            let expected = self.golden64[&format!("grad/{}", p.name)].to_f64s();
            let tolerance = if zero.contains(&p.name) { ZERO_GRADIENT * most } else { GRADIENT * largest(&expected) };
            let (found, expected) = p.layout.compared(gradient, &expected)?;
            verdict.all_near(&format!("gradient of {}", p.name), &found, &expected, tolerance);
        }
        verdict.require(!self.parameters.is_empty(), || "no gradient was compared".into());
        Ok(verdict)
    }

    /// Running statistics that ONNX's rule gives after one train step.
    fn statistics(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.golden.iter().filter_map(|(k, v)| Some((k.strip_prefix("bn_onnx/")?, v)))
    }

    fn running_statistics(&self, engine: &mut dyn Engine) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        verdict.steps = 1;
        let artifacts = engine.generate(&self.model, &self.options(None)?)?;
        let batches = [self.batch()?];
        let trained = engine.train(&training(&artifacts, &batches, 1, 0.0, false))?;
        if let Some(error) = trained.stopped {
            bail!(error);
        }
        for (name, expected) in self.statistics() {
            let found = elements(trained.first_parameters.get(name));
            let expected = expected.to_f64s();
            verdict.all_near(name, &found, &expected, LOSS * largest(&expected).max(1.0));
        }
        Ok(verdict)
    }

    /// A training on the one batch. Where it strays, trainings from moved parameters say how far it may (see `nudge`).
    fn train(&self, trace: &Value, optimizer: Optimizer, engine: &mut dyn Engine) -> Result<Verdict> {
        ensure!(!self.incomplete, "a parameter is missing in the export");
        let artifacts = engine.generate(&self.model, &self.options(Some(optimizer))?)?;
        let (batches, steps) = ([self.batch()?], numbers(&trace["losses64"])?.len());
        let rate = number(&trace["options"]["lr"]).context("lr")? as f32;
        let job = training(&artifacts, &batches, steps, rate, true);
        let trained = engine.train(&job)?;
        let verdict = self.judge(trace, &trained, &[])?;
        if verdict.ok() || trained.stopped.is_some() {
            return Ok(verdict);
        }
        self.judge(trace, &trained, &nudge::trainings(&job, engine)?)
    }

    /// Compares a training with the recorded one; `moved` are trainings from slightly moved parameters.
    fn judge(&self, trace: &Value, trained: &Trained, moved: &[Trained]) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        let expected = numbers(&trace["losses64"])?;
        if let Some(error) = &trained.stopped {
            verdict.fail(error.clone());
        }
        verdict.steps = trained.losses.len();
        let known = number(&trace["max_rel_loss_f32_vs_f64"]).filter(|x| x.is_finite()).unwrap_or(0.0);
        let mut most = 0.0;
        let mut tolerance = |expected: f64, found: f64, value: &dyn Fn(&Trained) -> Option<f64>| {
            most = spread(moved, found, value).max(most); // what has strayed once does not come back
            (TRACE.max(10.0 * known) * expected.abs()).max(nudge::ALLOWED * most)
        };
        verdict.require(trained.losses.len() == expected.len(), || {
            format!("{} losses of {}", trained.losses.len(), expected.len())
        });
        for (i, (&found, &expected)) in trained.losses.iter().zip(&expected).enumerate() {
            let tolerance = tolerance(expected, found, &|t| t.losses.get(i).copied());
            verdict.near(|| format!("loss of step {i}"), found, expected, tolerance);
        }
        if let (Some(found), Some(expected)) = (trained.closing_loss, number(&trace["loss_final64"])) {
            let tolerance = tolerance(expected, found, &|t| t.closing_loss);
            verdict.near(|| "loss at the end".into(), found, expected, tolerance);
            self.norms(&mut verdict, trace, &trained.parameters, moved)?;
        }
        Ok(verdict)
    }

    /// Norms of the parameters at the end, of those that are in the file as a whole.
    fn norms(&self, verdict: &mut Verdict, trace: &Value, parameters: &Feed, moved: &[Trained]) -> Result<()> {
        let zero = strings(&self.accuracy["zero_grad_params"])?;
        for p in &self.parameters {
            let get = |key: &str| trace[key].get(&p.name).and_then(number).filter(|x| x.is_finite());
            let (Some(l2), Some(l2_64)) = (get("final_l2"), get("final_l2_f64")) else { continue };
            let rounding = (l2 - l2_64).abs();
            // Adam turns the rounding noise of a gradient that should be zero into steps of its own.
            let noise = zero.contains(&p.name) && rounding > LOSS * l2_64;
            let Some(value) = parameters.get(&p.initializer).filter(|_| !noise) else { continue };
            if let Some(whole) = p.layout.whole(value)? {
                let found = norm(&whole);
                let other = |t: &Trained| Some(norm(&p.layout.whole(t.parameters.get(&p.initializer)?).ok()??));
                let tolerance = (TRACE * l2_64).max(10.0 * rounding).max(nudge::ALLOWED * spread(moved, found, &other));
                verdict.near(|| format!("norm of {} at the end", p.name), found, l2_64, tolerance);
            }
        }
        Ok(())
    }
}

/// A training on one batch.
fn training<'f>(
    artifacts: &'f ontrain::artifacts::Artifacts,
    batches: &'f [Feed],
    steps: usize,
    rate: f32,
    closing: bool,
) -> Training<'f> {
    Training {
        training_model: &artifacts.training_model,
        eval_model: None,
        optimizer_model: artifacts.optimizer_model.as_deref(),
        checkpoint: &artifacts.checkpoint,
        batches,
        first: 0,
        steps,
        accumulate: 1,
        rate: Rate::Constant(rate),
        non_finite: false,
        closing,
    }
}

impl Layout {
    /// An initializer's gradient and the parameter's, brought to one order.
    fn compared(&self, found: &Tensor, expected: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        match self {
            Layout::Part(map) => {
                let part = map.iter().map(|&i| expected.get(i).copied().context("dyn_index_map points outside"));
                Ok((found.to_f64s(), part.collect::<Result<_>>()?))
            }
            _ => Ok((self.whole(found)?.unwrap_or_default(), expected.to_vec())),
        }
    }

    /// The parameter's elements, if the initializer holds them all.
    fn whole(&self, initializer: &Tensor) -> Result<Option<Vec<f64>>> {
        let values = initializer.to_f64s();
        Ok(match self {
            Layout::Same => Some(values),
            Layout::Transposed => Some(transposed(&values, initializer.shape())),
            Layout::Gathered(map) => {
                let gathered = map.iter().map(|&i| values.get(i).copied().context("dyn_index_map points outside"));
                Some(gathered.collect::<Result<_>>()?)
            }
            Layout::Part(_) => None,
        })
    }
}

/// Elements with all axes reversed.
fn transposed(values: &[f64], shape: &[usize]) -> Vec<f64> {
    let strides = ontrain::tensor::contiguous_strides(shape);
    let at = |mut i: usize| {
        // The first axis of the result is the last of `shape`: peel digits from the first one on.
        let mut from = 0;
        for (&size, &stride) in shape.iter().zip(&strides) {
            from += i % size * stride as usize;
            i /= size;
        }
        from
    };
    (0..values.len()).map(|i| values[at(i)]).collect()
}

/// Where an entry of `dyn.params` says that a parameter is; `None` if it is nowhere.
fn layout(case: &Case<'_>, name: &str, entry: &Value) -> Result<Option<(String, Layout)>> {
    let map = || -> Result<Vec<usize>> {
        let maps = data::npz(&case.file("dyn_index_map.npz"))?;
        let map = maps.get(name).and_then(Tensor::to_i64s).with_context(|| format!("no index map of {name}"))?;
        map.into_iter().map(|i| usize::try_from(i).context("a negative index")).collect()
    };
    let layout = match entry["how"].as_str() {
        Some("identity" | "reshape") => Layout::Same,
        Some("transpose") => Layout::Transposed,
        Some("index_map") => Layout::Gathered(map()?),
        Some("subset_of_param") => Layout::Part(map()?),
        Some("missing") => return Ok(None),
        _ => bail!("parameter {name} is mapped by {}", entry["how"]),
    };
    let initializer = entry["initializer"].as_str().with_context(|| format!("parameter {name} has no initializer"))?;
    Ok(Some((initializer.to_owned(), layout)))
}

/// Makes one value again of copies that an exporter made of a tied weight.
fn retie(graph: &mut Graph, initializer: &str, copies: &[String]) -> Result<()> {
    for copy in copies {
        let find = |name: &str| graph.find(name).with_context(|| format!("there is no initializer {name}"));
        let (kept, gone) = (find(initializer)?, find(copy)?);
        let values = [kept, gone].map(|id| graph.initializer(id).cloned());
        let [Some(first), Some(second)] = values else { bail!("{initializer} or {copy} is not an initializer") };
        let replacement = if first == second {
            kept
        } else {
            let reversed: Vec<usize> = first.shape().iter().rev().copied().collect();
            let same = second.shape() == reversed && second.to_f64s() == transposed(&first.to_f64s(), first.shape());
            ensure!(same, "{copy} is no copy of {initializer}");
            let id = graph.fresh_value(&format!("{copy}/tied"), graph.value(gone).ty.clone());
            let transpose = Node {
                name: format!("{copy}/tied"),
                domain: String::new(),
                op_type: "Transpose".into(),
                inputs: vec![Some(kept)],
                outputs: vec![Some(id)],
                attributes: BTreeMap::from([(
                    "perm".into(),
                    Attribute::Ints((0..reversed.len() as i64).rev().collect()),
                )]),
            };
            graph.nodes.insert(0, transpose);
            id
        };
        for input in graph.nodes.iter_mut().flat_map(|n| n.inputs.iter_mut()).filter(|i| **i == Some(gone)) {
            *input = Some(replacement);
        }
        graph.initializers.retain(|(id, _)| *id != gone);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::transposed;

    #[test]
    fn transposes() {
        assert_eq!(transposed(&[0., 1., 2., 3., 4., 5.], &[2, 3]), [0., 3., 1., 4., 2., 5.]);
    }
}
