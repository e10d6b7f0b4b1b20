//! Cases that ONNX Runtime On-Device Training recorded. Each run is done twice: training ORT's own artifacts
//! (source `ort`), and artifacts that ontrain generates from the forward model (source `ontrain`).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use ontrain::artifacts::{Artifacts, Loss, Optimizer, Options, Reduction};
use ontrain::checkpoint::CheckpointState;
use ontrain::graph::{Attribute, Graph, Node};
use ontrain::onnx::{NoExternalData, WriteOptions, read, read_file, write};
use serde_json::Value;

use super::data::{self, Arrays, number, numbers, strings};
use super::engine::{Engine, Feed, Rate, Trained, Training};
use super::nudge;
use super::verdict::{Verdict, elements, largest, norm};
use super::{Case, Report};

/// The least tolerance of losses and parameters.
const TOLERANCE: f64 = 1e-5;
/// A case whose losses move by more than this when its parameters move by 1e-7 is chaotic: after a few steps there
/// is nothing to compare but the trend.
const CHAOTIC: f64 = 1e-3;
/// Steps that a resumed training is followed for.
const RESUMED: usize = 10;

pub(super) fn replay(case: &Case<'_>, engine: &mut dyn Engine, report: &mut Report<'_>) {
    for (name, run) in case.trace["runs"].as_object().into_iter().flatten() {
        for source in ["ort", "ontrain"] {
            report.run(name, source, || Recorded::load(case, name, run)?.replay(source, engine));
            let saved = format!("checkpoint_after_{name}");
            if case.file(&saved).is_file() {
                let resume = || Recorded::load(case, name, run)?.resume(source, &saved, engine);
                report.run(&format!("{name}:resume"), source, resume);
            }
        }
    }
}

/// What a training is done with.
struct Files {
    training: Vec<u8>,
    eval: Option<Vec<u8>>,
    optimizer: Vec<u8>,
    checkpoint: Vec<u8>,
}

/// A run of trace.json.
struct Recorded<'a> {
    case: &'a Case<'a>,
    name: &'a str,
    run: &'a Value,
    batches: Vec<Feed>,
    steps: usize,
    losses: Vec<f64>,
    /// How far each loss moves when parameters move by 1e-7.
    sensitivity: Vec<f64>,
    chaotic: bool,
}

impl<'a> Recorded<'a> {
    fn load(case: &'a Case<'a>, name: &'a str, run: &'a Value) -> Result<Self> {
        let losses = numbers(&run["losses"]).context("losses")?;
        let steps = run["steps"].as_u64().map_or(losses.len(), |n| n as usize);
        ensure!(steps == losses.len(), "{steps} steps with {} losses", losses.len());
        let mut sensitivity = match &run["loss_sensitivity_1e-7"] {
            Value::Null => Vec::new(),
            list => numbers(list)?,
        };
        sensitivity.resize(steps, 0.0);
        let chaotic = largest(&sensitivity) > CHAOTIC;
        if chaotic {
            // One nudge is one sample: what has diverged once does not come back.
            let mut most = 0.0f64;
            for s in &mut sensitivity {
                most = most.max(*s);
                *s = most;
            }
        }
        Ok(Self { case, name, run, batches: batches(case, run)?, steps, losses, sensitivity, chaotic })
    }

    fn training<'f>(&'f self, files: &'f Files) -> Result<Training<'f>> {
        let get = |key: &str| number(&self.run[key]).filter(|x| x.is_finite());
        let scheduler = &self.run["scheduler"];
        let rate = match scheduler["type"].as_str() {
            None => Rate::Constant(get("lr").context("lr")? as f32),
            Some("LinearLRScheduler") => {
                let count =
                    |key: &str| scheduler[key].as_u64().and_then(|n| u32::try_from(n).ok()).context("scheduler");
                let initial = number(&scheduler["initial_lr"]).or_else(|| get("lr")).context("initial_lr")? as f32;
                Rate::Linear { warmup: count("warmup")?, total: count("total")?, initial }
            }
            Some(other) => bail!("a scheduler of type {other}"),
        };
        Ok(Training {
            training_model: &files.training,
            eval_model: files.eval.as_deref(),
            optimizer_model: Some(&files.optimizer),
            checkpoint: &files.checkpoint,
            batches: &self.batches,
            first: 0,
            steps: self.steps,
            accumulate: self.run["accum"].as_u64().map_or(1, |n| n.max(1) as usize),
            rate,
            non_finite: false,
            closing: false,
        })
    }

    fn optimizer_file(&self) -> &str {
        self.run["optimizer_model"].as_str().unwrap_or("optimizer_model.onnx")
    }

    /// The artifacts that ORT made.
    fn theirs(&self) -> Result<Files> {
        let eval = self.case.file("eval_model.onnx").is_file().then(|| self.case.bytes("eval_model.onnx"));
        Ok(Files {
            training: self.case.bytes("training_model.onnx")?,
            eval: eval.transpose()?,
            optimizer: self.case.bytes(self.optimizer_file())?,
            checkpoint: self.case.bytes("checkpoint")?,
        })
    }

    /// The artifacts that ontrain makes of the same request.
    fn ours(&self, engine: &mut dyn Engine) -> Result<Files> {
        let trace = self.case.trace;
        let loss = match trace["loss"].as_str() {
            Some("CrossEntropyLoss") => Loss::cross_entropy(),
            Some("MSELoss") => Loss::MSELoss(Reduction::Mean),
            Some("L1Loss") => Loss::L1Loss(Reduction::Mean),
            Some("BCEWithLogitsLoss") => Loss::bce_with_logits(),
            None if trace["loss"].is_null() => Loss::None,
            _ => bail!("a loss {}", trace["loss"]),
        };
        let options = Options {
            requires_grad: strings(&trace["requires_grad"])?,
            frozen_params: strings(&trace["frozen"])?,
            loss,
            optimizer: Some(self.optimizer()?),
            additional_output_names: strings(&self.run["train_outputs"])?.split_off(1),
            ..Options::default()
        };
        let model = write(&read_file(self.case.file("model.onnx"))?, &WriteOptions::default())?;
        let Artifacts { training_model, eval_model, optimizer_model, checkpoint, .. } =
            engine.generate(&model, &options)?;
        let optimizer = optimizer_model.context("no optimizer model was generated")?;
        Ok(Files { training: training_model, eval: Some(eval_model), optimizer, checkpoint })
    }

    /// The optimizer's options, which stand only in its model.
    fn optimizer(&self) -> Result<Optimizer> {
        let graph = read_file(self.case.file(self.optimizer_file()))?;
        let find = |op: &str| graph.nodes.iter().find(|n| n.op_type == op);
        let clip_grad_norm = find("InplaceClipGradNorm").map(|node| float(node, "max_norm").unwrap_or(1.0));
        if find("SGDOptimizerV2").is_some() {
            return Ok(Optimizer::SGD { clip_grad_norm });
        }
        let node = find("AdamWOptimizer").context("the optimizer model is neither AdamW nor SGD")?;
        let get = |name: &str, default| float(node, name).unwrap_or(default);
        ensure!(get("adam_mode", 0.0) == 1.0, "AdamW with adam_mode 0");
        Ok(Optimizer::AdamW {
            betas: (get("alpha", 0.9), get("beta", 0.999)),
            eps: get("epsilon", 1e-8),
            weight_decay: get("weight_decay", 1e-2),
            bias_correction: get("correct_bias", 1.0) != 0.0,
            clip_grad_norm,
        })
    }

    fn files(&self, source: &str, engine: &mut dyn Engine) -> Result<Files> {
        if source == "ort" { self.theirs() } else { self.ours(engine) }
    }

    /// The whole run.
    fn replay(&self, source: &str, engine: &mut dyn Engine) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        let files = self.files(source, engine)?;
        if source == "ontrain" {
            same_contract(&mut verdict, &self.theirs()?, &files)?;
        }
        let overflow = self.losses.iter().position(|x| !x.is_finite());
        // Artifacts of ORT that overflow are followed as ORT did; those of ontrain have to stay finite.
        let job = Training { non_finite: overflow.is_some() && source == "ort", ..self.training(&files)? };
        let trained = engine.train(&job)?;
        verdict.steps = trained.losses.len();
        if let Some(error) = &trained.stopped {
            verdict.fail(error.clone());
            if trained.losses.is_empty() {
                return Ok(verdict);
            }
        }
        self.losses(&mut verdict, &trained.losses, overflow);
        if let (Some(_), "ontrain") = (overflow, source) {
            self.beyond(&mut verdict, &trained)?;
        }
        let moved = match self.chaotic {
            true => nudge::trainings(&Training { steps: 1, eval_model: None, ..job.clone() }, engine)?,
            false => Vec::new(),
        };
        self.first_step(&mut verdict, &trained, &moved)?;
        if trained.stopped.is_none() && overflow.is_none() {
            self.end(&mut verdict, &trained, &job, engine)?;
        }
        Ok(verdict)
    }

    fn tolerance(&self, step: usize) -> f64 {
        self.sensitivity.get(step).map_or(TOLERANCE, |s| (10.0 * s).max(TOLERANCE))
    }

    /// Losses, up to the first that is not finite.
    fn losses(&self, verdict: &mut Verdict, found: &[f64], overflow: Option<usize>) {
        let until = overflow.unwrap_or(self.steps);
        verdict.require(found.len() >= until, || format!("{} losses of {until}", found.len()));
        for (i, (&found, &expected)) in found.iter().zip(&self.losses).take(until).enumerate() {
            verdict.near(|| format!("loss of step {i}"), found, expected, self.tolerance(i));
        }
    }

    /// Where ORT overflowed: losses are finite to the end, and those of a float64 training if there is one.
    fn beyond(&self, verdict: &mut Verdict, trained: &Trained) -> Result<()> {
        if let Some(i) = trained.losses.iter().position(|x| !x.is_finite()) {
            verdict.fail(format!("the loss of step {i} is {}", trained.losses[i]));
        }
        let after = trained.eval.map_or(0.0, |e| e.1);
        verdict.require(after.is_finite(), || format!("the eval loss at the end is {after}"));
        let reference = self.case.file("ref_f64.json");
        if !reference.is_file() {
            return Ok(());
        }
        let reference = &data::json(&reference)?[self.name];
        let expected = numbers(&reference["losses"])?;
        let spread = number(&reference["max_abs_diff_vs_ort"]).filter(|x| x.is_finite()).unwrap_or(0.0);
        let tolerance = TOLERANCE.max(10.0 * spread).max(10.0 * largest(&self.sensitivity));
        verdict.require(trained.losses.len() == expected.len(), || {
            format!("{} losses, the float64 reference has {}", trained.losses.len(), expected.len())
        });
        for (i, (&found, &expected)) in trained.losses.iter().zip(&expected).enumerate() {
            verdict.near(|| format!("loss of step {i} against float64"), found, expected, tolerance);
        }
        Ok(())
    }

    /// Outputs and gradients of the first step.
    fn first_step(&self, verdict: &mut Verdict, trained: &Trained, moved: &[Trained]) -> Result<()> {
        for (i, expected) in self.run["extra_outputs_step0"].as_array().into_iter().flatten().enumerate() {
            // The file holds the first elements.
            let expected = numbers(expected)?;
            let mut found = elements(trained.extra_outputs.get(i));
            found.truncate(expected.len());
            verdict.all_near(
                &format!("additional output {i}"),
                &found,
                &expected,
                TOLERANCE * largest(&expected).max(1.0),
            );
        }
        let (exact, reference) = (self.case.file("grads_step0.npz"), self.case.file("grads_step0_f64ref.npz"));
        if let Some(file) = [reference, exact].into_iter().find(|file| file.is_file()) {
            self.gradients(verdict, trained, &data::npz(&file)?, moved);
            return Ok(());
        }
        self.digests(verdict, trained)
    }

    /// Gradients against whole arrays. What is zero but for rounding (against the largest gradient of the model) has
    /// only to stay that small. Those of a chaotic model are compared by norm, with what rounding does to them: see `nudge`.
    fn gradients(&self, verdict: &mut Verdict, trained: &Trained, expected: &Arrays, moved: &[Trained]) {
        let most = expected.values().map(|t| largest(&t.to_f64s())).fold(0.0, f64::max);
        for (name, expected) in expected {
            let expected = expected.to_f64s();
            let found = elements(trained.gradients.get(name));
            if moved.is_empty() || found.len() != expected.len() {
                let tolerance = 1e-4 * largest(&expected) + 1e-6 * most;
                verdict.all_near(&format!("gradient of {name}"), &found, &expected, tolerance);
                continue;
            }
            let apart = |a: &[f64], b: &[f64]| norm(&a.iter().zip(b).map(|(x, y)| x - y).collect::<Vec<_>>());
            let rounding = moved.iter().map(|t| apart(&found, &elements(t.gradients.get(name)))).fold(0.0, f64::max);
            let floor = 1e-6 * most * (expected.len() as f64).sqrt();
            let tolerance = (1e-4 * norm(&expected)).max(nudge::ALLOWED * rounding) + floor;
            verdict.near(|| format!("gradient of {name}, by norm"), apart(&found, &expected), 0.0, tolerance);
        }
    }

    /// Gradients against their sum, norm and first elements.
    fn digests(&self, verdict: &mut Verdict, trained: &Trained) -> Result<()> {
        let digests = self.run["grad_digest_step0"].as_object();
        let most = digests.into_iter().flatten().filter_map(|(_, d)| number(&d["l2"])).fold(0.0, f64::max);
        for (name, digest) in digests.into_iter().flatten() {
            let Some(gradient) = trained.gradients.get(name) else {
                verdict.fail(format!("there is no gradient of {name}"));
                continue;
            };
            let l2 = number(&digest["l2"]).context("l2")?;
            compare_digest(
                verdict,
                &format!("gradient of {name}"),
                &gradient.to_f64s(),
                digest,
                1e-4 * l2 + 1e-6 * most,
            )?;
        }
        Ok(())
    }

    /// Eval losses, rates and parameters at the end.
    fn end(&self, verdict: &mut Verdict, trained: &Trained, job: &Training<'_>, engine: &mut dyn Engine) -> Result<()> {
        let rates = numbers(&self.run["lrs"]).context("lrs")?;
        verdict.all_near("learning rate", &trained.rates, &rates, 1e-6 * largest(&rates));
        let last = self.steps.saturating_sub(1);
        let expected = ("eval_loss_before", "eval_loss_after");
        if let (Some(before), Some(after)) = (number_of(self.run, expected.0), number_of(self.run, expected.1)) {
            let Some(found) = trained.eval else { bail!("there was no eval model") };
            verdict.near(|| "eval loss before".into(), found.0, before, self.tolerance(0));
            verdict.near(|| "eval loss after".into(), found.1, after, self.tolerance(last));
        }
        if self.chaotic {
            for (name, value) in &trained.parameters {
                verdict.require(value.to_f64s().iter().all(|x| x.is_finite()), || {
                    format!("{name} is not finite at the end")
                });
            }
            return Ok(());
        }
        // Adam makes steps of gradients that are little but rounding.
        let mut strict = Verdict::default();
        self.parameters(&mut strict, &trained.parameters, &[])?;
        let moved = if strict.ok() { Vec::new() } else { nudge::trainings(job, engine)? };
        self.parameters(verdict, &trained.parameters, &moved)
    }

    /// Parameters at the end, running statistics included.
    fn parameters(&self, verdict: &mut Verdict, found: &Feed, moved: &[Trained]) -> Result<()> {
        let sensitivity = &self.run["final_param_sensitivity_max"];
        let tolerance = |name: &str| {
            let theirs = number_of(sensitivity, name).filter(|x| x.is_finite()).unwrap_or(0.0);
            let ours = nudge::apart(moved, found.get(name), |trained| trained.parameters.get(name));
            TOLERANCE.max(10.0 * theirs).max(nudge::ALLOWED * ours)
        };
        if let Some(file) = self.run["final_params"].as_str() {
            for (name, expected) in data::npz(&self.case.file(file))? {
                let found = elements(found.get(&name));
                verdict.all_near(&format!("final {name}"), &found, &expected.to_f64s(), tolerance(&name));
            }
            return Ok(());
        }
        for (name, digest) in self.run["final_digest"].as_object().into_iter().flatten() {
            let found = elements(found.get(name));
            compare_digest(verdict, &format!("final {name}"), &found, digest, tolerance(name))?;
        }
        Ok(())
    }

    /// Goes on from the checkpoint that ORT saved after the run, and compares with a training that was not interrupted.
    fn resume(&self, source: &str, saved: &str, engine: &mut dyn Engine) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        let files = self.files(source, engine)?;
        let straight = engine.train(&Training { steps: self.steps + RESUMED, ..self.training(&files)? })?;
        let resumed_files = Files { checkpoint: self.case.bytes(saved)?, ..self.files(source, engine)? };
        let resumed = Training { first: self.steps, steps: RESUMED, ..self.training(&resumed_files)? };
        let at_once = engine.train(&Training { steps: 0, ..resumed.clone() })?;
        let resumed = engine.train(&resumed)?;
        for trained in [&straight, &at_once, &resumed] {
            if let Some(error) = &trained.stopped {
                verdict.fail(error.clone());
            }
        }
        verdict.steps = resumed.losses.len();
        let taken = numbers(&self.run["lrs"])?.len() as i64;
        verdict.require(resumed.resumed_at == taken, || {
            format!("the optimizer resumed at step {}, ORT had taken {taken}", resumed.resumed_at)
        });
        self.parameters(&mut verdict, &at_once.parameters, &[])?;
        let last = self.tolerance(self.steps.saturating_sub(1));
        if let (Some(after), Some((found, _))) = (number_of(self.run, "eval_loss_after"), at_once.eval) {
            verdict.near(|| "eval loss of the checkpoint".into(), found, after, last);
        }
        let expected = straight.losses.get(self.steps..).unwrap_or_default();
        verdict.all_near("loss after resuming", &resumed.losses, expected, last);
        Ok(verdict)
    }
}

fn number_of(object: &Value, key: &str) -> Option<f64> {
    object.get(key).and_then(number)
}

fn float(node: &Node, name: &str) -> Option<f32> {
    match node.attributes.get(name)? {
        Attribute::Float(x) => Some(*x),
        Attribute::Int(i) => Some(*i as f32),
        _ => None,
    }
}

/// Compares with `{sum, l2, head}` of an array; `tolerance` is that of an element.
fn compare_digest(verdict: &mut Verdict, what: &str, found: &[f64], digest: &Value, tolerance: f64) -> Result<()> {
    let (sum, l2) = (number(&digest["sum"]).context("sum")?, number(&digest["l2"]).context("l2")?);
    let head = numbers(&digest["head"])?;
    if found.len() < head.len() || head.is_empty() {
        verdict.fail(format!("{what}: {} elements, expected {} or more", found.len(), head.len()));
        return Ok(());
    }
    verdict.all_near(what, &found[..head.len()], &head, tolerance);
    let spread = tolerance * (found.len() as f64).sqrt();
    verdict.near(|| format!("norm of {what}"), norm(found), l2, spread);
    verdict.near(|| format!("sum of {what}"), found.iter().sum(), sum, spread);
    Ok(())
}

/// The batches of `input_K.npy`, by the names of `train_inputs`.
fn batches(case: &Case<'_>, run: &Value) -> Result<Vec<Feed>> {
    let mut batches: Vec<Feed> = Vec::new();
    for (k, name) in strings(&run["train_inputs"])?.into_iter().enumerate() {
        let all = data::npy(&case.file(&format!("input_{k}.npy")))?;
        let (&count, shape) = all.shape().split_first().context("an input without a batch axis")?;
        let size = all.bytes().len().checked_div(count).context("no batch")?;
        batches.resize(count.max(batches.len()), BTreeMap::new());
        for (i, batch) in batches.iter_mut().enumerate() {
            let part = all.bytes().get(i * size..(i + 1) * size).context("inputs of different numbers of batches")?;
            batch.insert(name.clone(), ontrain::tensor::Tensor::from_bytes(all.dtype(), shape, part)?);
        }
    }
    Ok(batches)
}

/// Artifacts of ontrain have the same inputs as ORT's, and checkpoints of the same values.
fn same_contract(verdict: &mut Verdict, theirs: &Files, ours: &Files) -> Result<()> {
    let inputs = |bytes: &[u8]| -> Result<Vec<String>> {
        let graph: Graph = read(bytes, &NoExternalData)?;
        Ok(graph.inputs.iter().map(|id| graph.name_of(*id).to_owned()).collect())
    };
    let mut compare = |what: &str, theirs: &[u8], ours: &[u8]| -> Result<()> {
        let (theirs, ours) = (inputs(theirs)?, inputs(ours)?);
        verdict.require(theirs == ours, || format!("inputs of the {what} model are {ours:?}; ORT's are {theirs:?}"));
        Ok(())
    };
    compare("training", &theirs.training, &ours.training)?;
    compare("optimizer", &theirs.optimizer, &ours.optimizer)?;
    if let (Some(theirs), Some(ours)) = (&theirs.eval, &ours.eval) {
        compare("eval", theirs, ours)?;
    }
    let (theirs, ours) =
        (CheckpointState::from_bytes(&theirs.checkpoint)?, CheckpointState::from_bytes(&ours.checkpoint)?);
    let names = |state: &CheckpointState| {
        state.parameters().iter().map(|p| (p.name.clone(), p.requires_grad)).collect::<Vec<_>>()
    };
    verdict.require(names(&theirs) == names(&ours), || {
        format!("the checkpoint has {:?}; ORT's has {:?}", names(&ours), names(&theirs))
    });
    for p in theirs.parameters() {
        let same = ours.parameter(&p.name).is_some_and(|q| q.value == p.value);
        verdict.require(same, || format!("{} starts with another value than ORT's", p.name));
    }
    Ok(())
}
