//! Datasets from files: `.npz` archives and MNIST's pairs of IDX files, made to fit a model's inputs.

use crate::npy::Npz;
use crate::output::{Result, Stop, complain};
use crate::{idx, output};
use clap::Args;
use ontrain::error::{Result as EngineResult, bail, err};
use ontrain::graph::TensorType;
use ontrain::tensor::{DType, Dim, Tensor, show_dims};
use ontrain::train::data::Dataset;
use std::path::{Path, PathBuf};

/// The names and declared types of the inputs that a step takes.
pub(crate) type Inputs = [(String, Option<TensorType>)];

/// Where the data comes from.
#[derive(Args)]
pub(crate) struct DataArgs {
    /// Arrays in NumPy's .npz
    #[arg(long, value_name = "FILE.npz", conflicts_with_all = ["images", "labels"])]
    data: Option<PathBuf>,
    /// Which array feeds which input; without it they have the same name
    #[arg(long, value_name = "INPUT=ARRAY", num_args = 1..)]
    inputs: Vec<String>,
    /// Images as IDX (MNIST), plain or .gz
    #[arg(long, value_name = "FILE", requires = "labels")]
    images: Option<PathBuf>,
    /// Their labels as IDX
    #[arg(long, value_name = "FILE", requires = "images")]
    labels: Option<PathBuf>,
    /// Subtracted from pixels, which are scaled to 0..1 first
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    mean: f32,
    /// What they are divided by then
    #[arg(long, default_value_t = 1.0)]
    std: f32,
}

impl DataArgs {
    /// The training (or only) data.
    pub(crate) fn load(&self, inputs: &Inputs) -> Result<Dataset> {
        self.load_from(self.data.as_deref(), self.images.as_deref(), self.labels.as_deref(), inputs)?
            .ok_or_else(|| Stop::Usage("no data: give --data FILE.npz, or --images FILE and --labels FILE".into()))
    }

    /// Data from other files, read the same way; `None` if there are none.
    pub(crate) fn load_from(
        &self,
        data: Option<&Path>,
        images: Option<&Path>,
        labels: Option<&Path>,
        inputs: &Inputs,
    ) -> Result<Option<Dataset>> {
        if !(self.std.is_finite() && self.std > 0.0 && self.mean.is_finite()) {
            return Err(Stop::Usage("--mean and --std must be finite, --std above 0".into()));
        }
        match (data, images, labels) {
            (Some(path), None, None) => self.npz(path, inputs).map(Some),
            (None, Some(images), Some(labels)) => Ok(Some(self.mnist(images, labels, inputs)?)),
            (None, None, None) => Ok(None),
            _ => Err(Stop::Usage("give a .npz file, or images and labels".into())),
        }
    }

    fn npz(&self, path: &Path, inputs: &Inputs) -> Result<Dataset> {
        let mapping = self.mapping(inputs)?;
        let mut npz = Npz::open(path)?;
        let mut arrays = Vec::new();
        for ((input, ty), array) in inputs.iter().zip(mapping) {
            if !npz.names().any(|name| name == array) {
                let names: Vec<_> = npz.names().map(|n| format!("\"{n}\"")).collect();
                let message = format!(
                    "{} has no array \"{array}\" for input \"{input}\" (--inputs {input}=ARRAY names another)",
                    path.display()
                );
                return Err(err!(Input, "{message}").expected(show_inputs(inputs)).found(names.join(", ")).into());
            }
            let tensor = npz.array(&array)?;
            arrays.push((input.clone(), fit(input, tensor, ty.as_ref())?));
        }
        Ok(Dataset::new(arrays)?)
    }

    /// The array for each input.
    fn mapping(&self, inputs: &Inputs) -> Result<Vec<String>> {
        let mut mapping: Vec<Option<String>> = vec![None; inputs.len()];
        for pair in &self.inputs {
            let Some((input, array)) = pair.split_once('=') else {
                return Err(Stop::Usage(format!("--inputs takes INPUT=ARRAY, not \"{pair}\"")));
            };
            let Some(at) = inputs.iter().position(|(name, _)| name == input) else {
                let message = format!("--inputs: the model has no input \"{input}\"");
                return Err(err!(Input, "{message}").expected(show_inputs(inputs)).into());
            };
            if mapping[at].replace(array.into()).is_some() {
                return Err(Stop::Usage(format!("--inputs names input \"{input}\" twice")));
            }
        }
        Ok(mapping.into_iter().zip(inputs).map(|(array, (name, _))| array.unwrap_or_else(|| name.clone())).collect())
    }

    fn mnist(&self, images: &Path, labels: &Path, inputs: &Inputs) -> EngineResult<Dataset> {
        let [(image_input, image_type), (label_input, label_type)] = inputs else {
            return Err(
                err!(Input, "IDX files are images and labels, for a model of two inputs").found(show_inputs(inputs))
            );
        };
        let pixels = idx::open(images)?;
        if pixels.dtype() != DType::U8 {
            return Err(err!(Input, "{} holds no images", images.display()).expected("uint8").found(pixels.dtype()));
        }
        let (scale, shift) = (1.0 / (255.0 * self.std), self.mean / self.std);
        let values: Vec<f32> = pixels.bytes().iter().map(|&p| p as f32 * scale - shift).collect();
        let tensor = Tensor::new(pixels.shape(), &values)?;
        let tensor = reshape(image_input, tensor, image_type.as_ref())?;
        let arrays = vec![
            (image_input.clone(), fit(image_input, tensor, image_type.as_ref())?),
            (label_input.clone(), fit(label_input, idx::open(labels)?, label_type.as_ref())?),
        ];
        Dataset::new(arrays)
    }
}

/// Images `[N, H, W]` in the shape of the model's input, `[N, 1, H, W]` or `[N, H * W]` say.
fn reshape(input: &str, images: Tensor, ty: Option<&TensorType>) -> EngineResult<Tensor> {
    let Some(dims) = ty.and_then(|t| t.shape.as_ref()) else { return Ok(images) };
    let samples = images.shape().first().copied().unwrap_or(0);
    let rest: Option<Vec<usize>> = dims.iter().skip(1).map(Dim::known).collect();
    let shape = rest.map(|rest| [vec![samples], rest].concat());
    let size = |shape: &[usize]| shape.iter().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d));
    match shape {
        Some(shape) if size(&shape) == size(images.shape()) => images.reshaped(&shape),
        _ => Err(err!(Input, "the images do not fit input \"{input}\"")
            .expected(show_dims(dims))
            .found(show_dims(images.shape()))),
    }
}

/// `tensor` in the dtype of an input. Numbers may become wider or floating; float64 is rounded to the model's precision, and
/// said so.
fn fit(input: &str, tensor: Tensor, ty: Option<&TensorType>) -> EngineResult<Tensor> {
    let Some(want) = ty.map(|t| t.dtype).filter(|&want| want != tensor.dtype()) else { return Ok(tensor) };
    let have = tensor.dtype();
    if have.is_float() && want.is_float() {
        if have.size() > want.size() {
            complain(&format!("note: input \"{input}\": {have} rounded to {want}"));
        }
        return Tensor::from_f64s(want, tensor.shape(), &tensor.to_f64s());
    }
    match tensor.to_i64s() {
        Some(values) if want.is_float() => {
            let values: Vec<f64> = values.iter().map(|&v| v as f64).collect();
            Tensor::from_f64s(want, tensor.shape(), &values)
        }
        // Through int64, so that no label changes: what does not come back is out of range.
        Some(values) if want.is_int() && have != DType::U64 => {
            let floats: Vec<f64> = values.iter().map(|&v| v as f64).collect();
            let made = match want {
                DType::I64 => Tensor::new(tensor.shape(), &values)?,
                _ => Tensor::from_f64s(want, tensor.shape(), &floats)?,
            };
            if made.to_i64s().as_ref() != Some(&values) {
                bail!(Input, "input \"{input}\": {have} values are out of the range of {want}");
            }
            Ok(made)
        }
        _ => Err(err!(Input, "the array for input \"{input}\" has the wrong dtype").expected(want).found(have)),
    }
}

fn show_inputs(inputs: &Inputs) -> String {
    let show = |(name, ty): &(String, Option<TensorType>)| match ty {
        Some(ty) => format!("\"{name}\" {ty}"),
        None => format!("\"{name}\""),
    };
    format!("inputs {}", inputs.iter().map(show).collect::<Vec<_>>().join(", "))
}

/// How batches must be cut for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchSize {
    pub(crate) size: usize,
    /// Must every batch be full? It must where the model was exported for one size.
    pub(crate) fixed: bool,
}

/// The batch size: the one asked for, else the one that the model is fixed to, else 32.
pub(crate) fn batch_size(asked: Option<usize>, inputs: &Inputs) -> Result<BatchSize> {
    let first = |ty: &Option<TensorType>| ty.as_ref()?.shape.as_ref()?.first()?.known();
    let fixed = inputs.iter().find_map(|(name, ty)| Some((name, first(ty)?)));
    match (asked, fixed) {
        (Some(0), _) => Err(Stop::Usage("--batch-size must be 1 or more".into())),
        (Some(asked), Some((name, fixed))) if asked != fixed => {
            let message = format!("the model was exported for one batch size, at input \"{name}\"");
            Err(err!(Input, "{message}").expected(fixed).found(asked).into())
        }
        (_, Some((_, size))) => Ok(BatchSize { size, fixed: true }),
        (asked, None) => Ok(BatchSize { size: asked.unwrap_or(32), fixed: false }),
    }
}

/// Says what a fixed batch size leaves out.
pub(crate) fn note_left_out(dataset: &Dataset, batch: BatchSize, what: &str) {
    let rest = dataset.len() % batch.size.max(1);
    if batch.fixed && rest > 0 {
        complain(&format!(
            "note: the model takes batches of {} only: the last {} of {} {what} are left out",
            batch.size,
            output::count(rest, "sample"),
            dataset.len()
        ));
    }
}
