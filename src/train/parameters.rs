//! Parameters and their gradients on the device.

use super::module::declared;
use crate::backend::Backend;
use crate::checkpoint::CheckpointState;
use crate::error::{Result, bail, err};
use crate::graph::{Graph, ValueId};
use crate::tensor::{DType, Tensor, show_dims};

/// One parameter on the device.
pub(super) struct Parameter<B: Backend> {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) value: B::Buffer,
    /// For trainable ones.
    pub(super) gradient: Option<B::Buffer>,
    /// Has it a value? (Those of a nominal checkpoint have none at first.)
    filled: bool,
}

impl<B: Backend> Parameter<B> {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Fails unless a model declares this parameter as it is.
    pub(super) fn fits(&self, graph: &Graph, id: ValueId) -> Result<()> {
        let (dtype, shape) = declared(graph, id)?;
        if (dtype, &shape) != (self.dtype, &self.shape) {
            return Err(err!(Checkpoint, "parameter \"{}\" of the checkpoint does not fit the model", self.name)
                .expected(format!("{dtype}{}", show_dims(&shape)))
                .found(format!("{}{}", self.dtype, show_dims(&self.shape))));
        }
        Ok(())
    }
}

/// All parameters, in the order of the training model's inputs.
pub(super) struct Parameters<B: Backend> {
    pub(super) list: Vec<Parameter<B>>,
}

impl<B: Backend> Parameters<B> {
    /// Uploads the values of `state`. `Checkpoint` error unless they are what `train` declares.
    pub(super) fn new(train: &Graph, state: &CheckpointState, backend: &B) -> Result<Self> {
        let mut list = Vec::new();
        for &id in &train.inputs {
            let name = train.name_of(id);
            let Some(p) = state.parameter(name) else { continue };
            let (dtype, declared_shape) = declared(train, id)?;
            let shape = p.value.as_ref().map_or(declared_shape, |v| v.shape().to_vec());
            let len = shape.iter().product();
            let value = backend.alloc(dtype, len)?;
            if let Some(tensor) = &p.value
                && p.dtype == dtype
            {
                backend.upload(&value, tensor.bytes())?;
            }
            let gradient = if p.requires_grad { Some(backend.alloc(dtype, len)?) } else { None };
            let parameter =
                Parameter { name: name.into(), dtype: p.dtype, shape, value, gradient, filled: p.value.is_some() };
            parameter.fits(train, id)?;
            list.push(parameter);
        }
        if let Some(p) = state.parameters().iter().find(|p| !list.iter().any(|q: &Parameter<B>| q.name == p.name)) {
            bail!(
                Checkpoint,
                "parameter \"{}\" of the checkpoint is not an input of the training model: is it another model's?",
                p.name
            );
        }
        Ok(Self { list })
    }

    pub(super) fn find(&self, name: &str) -> Option<&Parameter<B>> {
        self.list.iter().find(|p| p.name == name)
    }

    fn get(&self, name: &str) -> Result<&Parameter<B>> {
        self.find(name).ok_or_else(|| {
            let names: Vec<_> = self.list.iter().map(|p| &*p.name).collect();
            err!(Input, "the module has no parameter \"{name}\"").expected(format!("one of {}", names.join(", ")))
        })
    }

    /// Those with a gradient.
    pub(super) fn trainable(&self) -> impl Iterator<Item = &Parameter<B>> {
        self.list.iter().filter(|p| p.gradient.is_some())
    }

    fn chosen(&self, trainable_only: bool) -> impl Iterator<Item = &Parameter<B>> {
        self.list.iter().filter(move |p| !trainable_only || p.gradient.is_some())
    }

    /// Fails while a parameter of a nominal checkpoint has no value.
    pub(super) fn check_filled(&self) -> Result<()> {
        match self.list.iter().find(|p| !p.filled) {
            None => Ok(()),
            Some(p) => Err(err!(
                State,
                "the checkpoint is nominal: parameter \"{}\" has no value yet; fill every parameter first",
                p.name
            )),
        }
    }

    pub(super) async fn value(&self, backend: &B, name: &str) -> Result<Tensor> {
        let p = self.get(name)?;
        if !p.filled {
            bail!(State, "the checkpoint is nominal: parameter \"{name}\" has no value yet");
        }
        let mut tensor = Tensor::zeros(p.dtype, &p.shape)?;
        backend.download(&p.value, tensor.bytes_mut()).await?;
        Ok(tensor)
    }

    pub(super) async fn gradient(&self, backend: &B, name: &str) -> Result<Tensor> {
        let p = self.get(name)?;
        let Some(gradient) = &p.gradient else { bail!(Input, "parameter \"{name}\" is frozen: it has no gradient") };
        let mut tensor = Tensor::zeros(p.dtype, &p.shape)?;
        backend.download(gradient, tensor.bytes_mut()).await?;
        Ok(tensor)
    }

    pub(super) fn set(&mut self, backend: &B, name: &str, value: &Tensor) -> Result<()> {
        let p = self.get(name)?;
        if (value.dtype(), value.shape()) != (p.dtype, &*p.shape) {
            return Err(err!(Input, "the new value of parameter \"{name}\" does not fit")
                .expected(format!("{}{}", p.dtype, show_dims(&p.shape)))
                .found(format!("{}{}", value.dtype(), show_dims(value.shape()))));
        }
        backend.upload(&p.value, value.bytes())?;
        self.list.iter_mut().find(|p| p.name == name).expect("found above").filled = true;
        Ok(())
    }

    pub(super) fn size(&self, trainable_only: bool) -> usize {
        self.chosen(trainable_only).map(Parameter::len).sum()
    }

    fn check_f32(&self, trainable_only: bool) -> Result<()> {
        match self.chosen(trainable_only).find(|p| p.dtype != DType::F32) {
            None => Ok(()),
            Some(p) => Err(err!(Input, "parameter \"{}\" cannot be part of a float32 vector", p.name)
                .expected("float32")
                .found(p.dtype)),
        }
    }

    pub(super) async fn contiguous(&self, backend: &B, trainable_only: bool) -> Result<Tensor> {
        self.check_f32(trainable_only)?;
        self.check_filled()?;
        let mut all = Tensor::zeros(DType::F32, &[self.size(trainable_only)])?;
        let mut rest = all.bytes_mut();
        for p in self.chosen(trainable_only) {
            let (part, next) = rest.split_at_mut(p.len() * 4);
            backend.download(&p.value, part).await?;
            rest = next;
        }
        Ok(all)
    }

    pub(super) fn load(&mut self, backend: &B, values: &[f32], trainable_only: bool) -> Result<()> {
        self.check_f32(trainable_only)?;
        let size = self.size(trainable_only);
        if values.len() != size {
            return Err(err!(Input, "the vector does not fill the parameters")
                .expected(format!("{size} elements"))
                .found(values.len()));
        }
        let mut rest = values;
        for p in self.list.iter_mut().filter(|p| !trainable_only || p.gradient.is_some()) {
            let (part, next) = rest.split_at(p.shape.iter().product());
            backend.upload(&p.value, bytemuck::cast_slice(part))?;
            p.filled = true;
            rest = next;
        }
        Ok(())
    }

    /// Names and values of those that are filled.
    pub(super) async fn values(&self, backend: &B) -> Result<Vec<(String, Tensor)>> {
        let mut values = Vec::new();
        for p in self.list.iter().filter(|p| p.filled) {
            values.push((p.name.clone(), self.value(backend, &p.name).await?));
        }
        Ok(values)
    }
}
