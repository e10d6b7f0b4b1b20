//! The npm package as an [`Engine`], in Node or in a page of Chromium: jobs go through files to a worker (worker.mjs,
//! chromium.mjs) that stays alive between them, and is started anew when the engine in it has trapped.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, bail, ensure};
use ontrain::artifacts::{Artifacts, Loss, Optimizer, Options, Reduction, generate};
use ontrain::onnx::{NoExternalData, read};
use ontrain::tensor::{DType, Tensor};
use serde_json::{Map, Value, json};

use super::data::{self, number, numbers};
use super::engine::{Engine, Feed, Rate, Trained, Training};
use crate::{pack, setup, sh};

/// The scripts; they are put where `ontrain` can be imported.
const SCRIPTS: [(&str, &str); 3] = [
    ("jobs.mjs", include_str!("jobs.mjs")),
    ("worker.mjs", include_str!("worker.mjs")),
    ("chromium.mjs", include_str!("chromium.mjs")),
];

/// What runs JavaScript.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Host {
    Node,
    Chromium,
}

/// The package, installed, and a process that uses it.
pub(super) struct Package {
    /// As `--backend` has it.
    name: String,
    host: Host,
    /// As the package's `init` has it: wasm or webgpu.
    device: &'static str,
    project: PathBuf,
    worker: Option<Worker>,
}

struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Worker {
    /// The end of its input ends it.
    fn drop(&mut self) {
        drop(self.input.take());
        sh::end(&mut self.child);
    }
}

impl Package {
    /// The package installed in `project`, or built now and installed as a user would.
    pub(super) fn new(name: &str, host: Host, device: &'static str, project: Option<&Path>) -> Result<Self> {
        let project = match project {
            Some(project) => std::path::absolute(project)?,
            None => pack::pack_and_install()?,
        };
        for (file, text) in SCRIPTS {
            sh::write_file(&project.join("replay").join(file), text)?;
        }
        sh::make_dir(&project.join("job"))?;
        match host {
            Host::Chromium => {
                pack::copy_tests(&project)?;
                pack::link(&project, &setup::playwright()?)?;
            }
            Host::Node if device == "webgpu" => pack::link(&project, &setup::node_webgpu()?)?,
            Host::Node => {}
        }
        Ok(Self { name: name.to_owned(), host, device, project, worker: None })
    }

    fn start(&self) -> Result<Worker> {
        let mut node = pack::node(&self.project);
        match self.host {
            Host::Node if self.device == "webgpu" => node.envs(setup::chromium_gpu()?).arg("replay/worker.mjs"),
            Host::Node => node.arg("replay/worker.mjs"),
            Host::Chromium => node.env("CHROME_PATH", setup::chromium()?).arg("replay/chromium.mjs"),
        };
        let mut child = node.arg(self.device).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let Some(output) = child.stdout.take() else { bail!("Node has no pipes") };
        Ok(Worker { input: child.stdin.take(), child, output: BufReader::new(output) })
    }

    /// Has a job done.
    fn ask(&mut self, job: Outgoing) -> Result<Answer> {
        let folder = self.project.join("job");
        sh::write_file(&folder.join("job.bin"), &job.bytes)?;
        sh::write_file(&folder.join("job.json"), Value::Object(job.json).to_string())?;
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => self.start().context("starting Node")?,
        };
        let worker = self.worker.insert(worker);
        let mut line = String::new();
        let input = worker.input.as_mut().context("its input is open until it is dropped")?;
        let talked = writeln!(input, "{}", folder.display()).and_then(|()| worker.output.read_line(&mut line));
        if talked.is_err() || line.trim() != "done" {
            self.worker = None;
            bail!("the Node process ended in the middle of a job");
        }
        let answer = Answer::read(&folder)?;
        if answer.json["broken"] == true {
            self.worker = None;
        }
        match answer.json["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(answer),
        }
    }
}

/// A job on its way.
#[derive(Default)]
struct Outgoing {
    json: Map<String, Value>,
    bytes: Vec<u8>,
}

impl Outgoing {
    fn new(job: &str) -> Self {
        let mut new = Self::default();
        new.set("job", job.into());
        new
    }

    fn set(&mut self, name: &str, value: Value) {
        self.json.insert(name.into(), value);
    }

    fn place(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.bytes.len();
        self.bytes.extend(bytes);
        (start, bytes.len())
    }

    fn blob(&mut self, bytes: &[u8]) -> Value {
        let (start, length) = self.place(bytes);
        json!({ "$bytes": [start, length] })
    }

    fn tensor(&mut self, tensor: &Tensor) -> Value {
        let (start, length) = self.place(tensor.bytes());
        json!({ "$tensor": [tensor.dtype().name(), tensor.shape(), start, length] })
    }

    fn feed(&mut self, feed: &Feed) -> Value {
        feed.iter().map(|(name, tensor)| (name.clone(), self.tensor(tensor))).collect()
    }
}

/// What came back.
struct Answer {
    json: Value,
    bytes: Vec<u8>,
}

impl Answer {
    fn read(folder: &Path) -> Result<Self> {
        Ok(Self { json: data::json(&folder.join("answer.json"))?, bytes: sh::read_file(&folder.join("answer.bin"))? })
    }

    fn part(&self, start: &Value, length: &Value) -> Result<&[u8]> {
        let range = start.as_u64().zip(length.as_u64()).map(|(s, n)| s as usize..(s + n) as usize);
        range.and_then(|range| self.bytes.get(range)).context("an answer that points outside its data")
    }

    fn blob(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match &self.json[name]["$bytes"] {
            Value::Null => Ok(None),
            place => Ok(Some(self.part(&place[0], &place[1])?.to_vec())),
        }
    }

    fn tensor(&self, value: &Value) -> Result<Tensor> {
        let about = &value["$tensor"];
        let name = about[0].as_str().context("an answer without a tensor")?;
        let dtype = DType::ALL.into_iter().find(|d| d.name() == name).with_context(|| format!("a tensor of {name}"))?;
        let shape: Vec<usize> = numbers(&about[1])?.into_iter().map(|n| n as usize).collect();
        Ok(Tensor::from_bytes(dtype, &shape, self.part(&about[2], &about[3])?)?)
    }

    /// Tensors by name, from a list of pairs.
    fn feed(&self, name: &str) -> Result<Feed> {
        let pairs = self.json[name].as_array().into_iter().flatten();
        pairs
            .map(|pair| Ok((pair[0].as_str().context("a tensor without a name")?.to_owned(), self.tensor(&pair[1])?)))
            .collect()
    }
}

impl Engine for Package {
    fn name(&self) -> &str {
        &self.name
    }

    fn train(&mut self, job: &Training<'_>) -> Result<Trained> {
        let mut out = Outgoing::new("train");
        let files = [
            ("trainingModel", Some(job.training_model)),
            ("evalModel", job.eval_model),
            ("optimizerModel", job.optimizer_model),
            ("checkpoint", Some(job.checkpoint)),
        ];
        for (name, bytes) in files {
            let value = bytes.map_or(Value::Null, |bytes| out.blob(bytes));
            out.set(name, value);
        }
        let batches = job.batches.iter().map(|batch| out.feed(batch)).collect();
        out.set("batches", batches);
        out.set("first", job.first.into());
        out.set("steps", job.steps.into());
        out.set("accumulate", job.accumulate.into());
        out.set("nonFinite", job.non_finite.into());
        out.set("closing", job.closing.into());
        out.set(
            "rate",
            match job.rate {
                Rate::Constant(rate) => json!({ "constant": rate }),
                Rate::Linear { warmup, total, initial } => {
                    json!({ "warmup": warmup, "total": total, "initial": initial })
                }
            },
        );
        let answer = self.ask(out)?;
        let json = &answer.json;
        let on_gpu = json["submissions"].as_u64() > Some(0);
        ensure!(on_gpu == (self.device == "webgpu"), "the package was told to use {} and did not", self.device);
        let eval = match json["eval"].as_array().map(Vec::as_slice) {
            Some([before, after]) => number(before).zip(number(after)),
            _ => None,
        };
        let extra = json["extraOutputs"].as_array().into_iter().flatten();
        Ok(Trained {
            resumed_at: json["resumedAt"].as_i64().unwrap_or(0),
            losses: numbers(&json["losses"])?,
            rates: numbers(&json["rates"])?,
            eval,
            closing_loss: json.get("closingLoss").and_then(number),
            extra_outputs: extra.map(|value| answer.tensor(value)).collect::<Result<_>>()?,
            gradients: answer.feed("gradients")?,
            first_parameters: answer.feed("firstParameters")?,
            parameters: answer.feed("parameters")?,
            stopped: json["stopped"].as_str().map(str::to_owned),
        })
    }

    fn forward(&mut self, model: &[u8], inputs: &Feed) -> Result<Vec<Tensor>> {
        let graph = read(model, &NoExternalData)?;
        let mut out = Outgoing::new("forward");
        let (model, feed) = (out.blob(model), out.feed(inputs));
        out.set("model", model);
        out.set("feed", feed);
        let outputs = self.ask(out)?.feed("outputs")?;
        // JavaScript's objects keep names such as "12" in an order of their own.
        let find =
            |name: &str| outputs.get(name).cloned().with_context(|| format!("the package gave no output \"{name}\""));
        graph.outputs.iter().map(|id| find(graph.name_of(*id))).collect()
    }

    fn generate(&mut self, model: &[u8], options: &Options) -> Result<Artifacts> {
        let mut out = Outgoing::new("generate");
        let Some(loss) = loss(&mut out, &options.loss) else {
            // A loss made in Rust.
            return Ok(generate(&read(model, &NoExternalData)?, options)?);
        };
        let model = out.blob(model);
        out.set("model", model);
        out.set(
            "options",
            json!({
                "requiresGrad": options.requires_grad,
                "frozenParams": options.frozen_params,
                "loss": loss,
                "optimizer": optimizer(options.optimizer.as_ref()),
                "additionalOutputNames": options.additional_output_names,
                "lossInputNames": options.loss_input_names,
            }),
        );
        let answer = self.ask(out)?;
        let need = |name: &str| answer.blob(name)?.with_context(|| format!("the package generated no {name}"));
        Ok(Artifacts {
            training_model: need("trainingModel")?,
            eval_model: need("evalModel")?,
            optimizer_model: answer.blob("optimizerModel")?,
            checkpoint: need("checkpoint")?,
            nominal_checkpoint: None,
        })
    }
}

/// The package's name of a loss, if it has one.
fn loss(out: &mut Outgoing, loss: &Loss) -> Option<Value> {
    let reduction = |reduction: &Reduction| if *reduction == Reduction::Mean { "mean" } else { "sum" };
    let mut value = match loss {
        Loss::None => json!({ "type": "none" }),
        Loss::MSELoss(r) => json!({ "type": "MSELoss", "reduction": reduction(r) }),
        Loss::L1Loss(r) => json!({ "type": "L1Loss", "reduction": reduction(r) }),
        Loss::CrossEntropyLoss { reduction: r, ignore_index, .. } => {
            let mut value = json!({ "type": "CrossEntropyLoss", "reduction": reduction(r) });
            if let Some(index) = ignore_index {
                value["ignoreIndex"] = json!(index);
            }
            value
        }
        Loss::BCEWithLogitsLoss { reduction: r, .. } => {
            json!({ "type": "BCEWithLogitsLoss", "reduction": reduction(r) })
        }
        Loss::Custom(_) => return None,
    };
    match loss {
        Loss::CrossEntropyLoss { weight: Some(weight), .. } => value["weight"] = out.tensor(weight),
        Loss::BCEWithLogitsLoss { pos_weight: Some(weight), .. } => value["posWeight"] = out.tensor(weight),
        _ => {}
    }
    Some(value)
}

fn optimizer(optimizer: Option<&Optimizer>) -> Value {
    let mut value = match optimizer {
        None => return Value::Null,
        Some(Optimizer::AdamW { betas, eps, weight_decay, bias_correction, .. }) => json!({
            "type": "AdamW", "betas": [betas.0, betas.1], "eps": eps, "weightDecay": weight_decay,
            "biasCorrection": bias_correction,
        }),
        Some(Optimizer::SGD { .. }) => json!({ "type": "SGD" }),
    };
    if let Some(Optimizer::AdamW { clip_grad_norm: Some(norm), .. } | Optimizer::SGD { clip_grad_norm: Some(norm) }) =
        optimizer
    {
        value["clipGradNorm"] = json!(norm);
    }
    value
}
