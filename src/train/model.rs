//! A graph made runnable: its inputs sorted by role, and one compiled plan for each set of input sizes.

use crate::backend::Backend;
use crate::error::{Result, bail, err};
use crate::graph::{Graph, ValueType};
use crate::kernel::RunContext;
use crate::plan::{Output, Plan, PlanInput, build};
use crate::tensor::{DType, Dim, Tensor, show_dims};

/// How many sets of input sizes keep their plan; the one unused longest goes first.
const PLANS: usize = 8;

/// What a graph input is for.
pub(super) enum Role<B: Backend> {
    /// Given at each step.
    User,
    /// Lives on the device.
    Bound {
        /// The buffer.
        buffer: B::Buffer,
        /// Its dtype.
        dtype: DType,
        /// Its sizes.
        shape: Vec<usize>,
    },
}

/// A graph and its compiled plans.
pub(super) struct Model<B: Backend> {
    pub(super) graph: Graph,
    roles: Vec<Role<B>>,
    /// Most recently run last.
    plans: Vec<Compiled<B>>,
    /// Outputs that are read after a run: the first ones.
    read: usize,
}

/// A plan compiled for one set of input sizes.
struct Compiled<B: Backend> {
    plan: Plan,
    program: B::Program,
    /// The buffers of user inputs, in order.
    user: Vec<B::Buffer>,
    /// Dtype and sizes of the user inputs.
    types: Vec<(DType, Vec<usize>)>,
    /// Values that the plan was made for, per user input.
    pinned: Vec<Option<Tensor>>,
    /// What was read after the last run.
    outputs: Vec<Tensor>,
    /// Has it been run, the last time without an error?
    ran: bool,
}

impl<B: Backend> Model<B> {
    /// `roles` in the order of `graph.inputs`; the first `read` outputs are read after each run.
    pub(super) fn new(graph: Graph, roles: Vec<Role<B>>, read: usize) -> Self {
        Self { graph, roles, plans: Vec::new(), read }
    }

    /// Positions of the user inputs among the graph inputs.
    fn user_inputs(&self) -> impl Iterator<Item = usize> {
        (0..self.roles.len()).filter(|&i| matches!(self.roles[i], Role::User))
    }

    /// Names of the user inputs, in order.
    pub(super) fn input_names(&self) -> Vec<String> {
        self.user_inputs().map(|i| self.graph.name_of(self.graph.inputs[i]).to_owned()).collect()
    }

    /// Names of the outputs that are read, in order.
    pub(super) fn output_names(&self) -> Vec<String> {
        self.graph.outputs[..self.read].iter().map(|id| self.graph.name_of(*id).to_owned()).collect()
    }

    /// Runs the model on `inputs`, in the order of [`Self::input_names`], and reads its outputs.
    pub(super) async fn run(&mut self, backend: &B, inputs: &[&Tensor], cx: &RunContext) -> Result<()> {
        self.start(backend, inputs, cx).await?;
        self.fetch(backend).await
    }

    /// Lets the device run the model, without waiting for it.
    pub(super) async fn start(&mut self, backend: &B, inputs: &[&Tensor], cx: &RunContext) -> Result<()> {
        self.prepare(backend, inputs).await?;
        let compiled = self.plans.last_mut().expect("prepared");
        compiled.ran = false;
        for (buffer, tensor) in compiled.user.iter().zip(inputs) {
            backend.upload(buffer, tensor.bytes())?;
        }
        backend.run(&mut compiled.program, cx).await?;
        compiled.ran = true;
        Ok(())
    }

    /// Reads the outputs of the last run.
    pub(super) async fn fetch(&mut self, backend: &B) -> Result<()> {
        let Some(compiled) = self.plans.last_mut().filter(|c| c.ran) else { return Ok(()) };
        let outputs = &compiled.plan.outputs[..compiled.outputs.len()];
        backend.read(&compiled.program, outputs, &mut compiled.outputs).await
    }

    /// The outputs that were read last.
    pub(super) fn outputs(&self) -> &[Tensor] {
        self.plans.last().filter(|c| c.ran).map_or(&[], |c| &c.outputs)
    }

    /// The plan for inputs of these sizes, made if it is not there. What has been run last stays so.
    pub(super) async fn plan(&mut self, backend: &B, inputs: &[&Tensor]) -> Result<&Plan> {
        let at = match self.find(inputs) {
            Some(at) => at,
            None => {
                let compiled = self.compile(backend, inputs).await?;
                let at = self.plans.len().saturating_sub(1);
                self.plans.insert(at, compiled);
                at
            }
        };
        Ok(&self.plans[at].plan)
    }

    /// Brings the plan for these inputs to the end of `plans`.
    async fn prepare(&mut self, backend: &B, inputs: &[&Tensor]) -> Result<()> {
        if let Some(at) = self.find(inputs) {
            self.plans[at..].rotate_left(1);
            return Ok(());
        }
        let compiled = self.compile(backend, inputs).await?;
        self.plans.push(compiled);
        Ok(())
    }

    /// The plan that was made for inputs like these.
    fn find(&self, inputs: &[&Tensor]) -> Option<usize> {
        self.plans.iter().rposition(|compiled| compiled.fits(inputs))
    }

    /// Makes a plan, for which there is room then.
    async fn compile(&mut self, backend: &B, inputs: &[&Tensor]) -> Result<Compiled<B>> {
        self.check(inputs)?;
        let mut user = inputs.iter();
        let wanted = self.roles.iter().map(|role| match role {
            Role::User => {
                let tensor: &Tensor = user.next().expect("check counted them");
                PlanInput { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), value: Some(tensor) }
            }
            Role::Bound { dtype, shape, .. } => PlanInput { dtype: *dtype, shape: shape.clone(), value: None },
        });
        let wanted: Vec<PlanInput<'_>> = wanted.collect();
        let plan = build(&self.graph, &wanted, &backend.layout())?;
        let mut buffers = Vec::with_capacity(self.roles.len());
        let (mut user, mut pinned) = (Vec::new(), Vec::new());
        for ((role, input), wanted) in self.roles.iter().zip(&plan.inputs).zip(&wanted) {
            buffers.push(match role {
                Role::Bound { buffer, .. } => buffer.clone(),
                Role::User => {
                    let tensor = wanted.value.expect("user inputs have values");
                    let buffer = backend.alloc(tensor.dtype(), tensor.len())?;
                    user.push(buffer.clone());
                    pinned.push(input.pinned.then(|| tensor.clone()));
                    buffer
                }
            });
        }
        let program = backend.compile(&plan, &buffers).await?;
        let mut outputs = Vec::new();
        for (_, output) in &plan.outputs[..self.read] {
            outputs.push(match output {
                Output::View(view) => Tensor::zeros(view.dtype, &view.shape)?,
                Output::Constant(tensor) => (**tensor).clone(),
            });
        }
        let types = inputs.iter().map(|t| (t.dtype(), t.shape().to_vec())).collect();
        if self.plans.len() == PLANS {
            self.plans.remove(0);
        }
        Ok(Compiled { plan, program, user, types, pinned, outputs, ran: false })
    }

    /// Fails unless the inputs are those that the graph declares.
    fn check(&self, inputs: &[&Tensor]) -> Result<()> {
        let names = self.input_names();
        if inputs.len() != names.len() {
            return Err(err!(Input, "number of inputs")
                .expected(format!("{} ({})", names.len(), names.join(", ")))
                .found(inputs.len()));
        }
        let mut sizes: Vec<(&Dim, usize, &str)> = Vec::new();
        for ((i, tensor), name) in self.user_inputs().zip(inputs).zip(&names) {
            let Some(ValueType::Tensor(ty)) = &self.graph.value(self.graph.inputs[i]).ty else {
                bail!(Graph, "input \"{name}\" is not declared as a tensor");
            };
            let found = || format!("{}{}", tensor.dtype(), show_dims(tensor.shape()));
            let wrong = |what: &str| err!(Input, "input \"{name}\" has the wrong {what}").expected(ty).found(found());
            if tensor.dtype() != ty.dtype {
                return Err(wrong("dtype"));
            }
            let Some(dims) = &ty.shape else { continue };
            if dims.len() != tensor.shape().len() {
                return Err(wrong("rank"));
            }
            for (dim, &size) in dims.iter().zip(tensor.shape()) {
                match (dim, sizes.iter().find(|(d, ..)| *d == dim)) {
                    (Dim::Known(n), _) if *n != size => return Err(wrong("shape")),
                    (Dim::Symbol(symbol), Some((_, known, other))) if *known != size => {
                        let message = format!("input \"{name}\" disagrees with \"{other}\" on {symbol}");
                        return Err(err!(Input, "{message}").expected(known).found(size));
                    }
                    (Dim::Symbol(_), None) => sizes.push((dim, size, name)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl<B: Backend> Compiled<B> {
    /// Was this plan made for inputs like these?
    fn fits(&self, inputs: &[&Tensor]) -> bool {
        inputs.len() == self.types.len()
            && self.types.iter().zip(inputs).zip(&self.pinned).all(|((ty, tensor), pinned)| {
                (ty.0, &*ty.1) == (tensor.dtype(), tensor.shape())
                    && pinned.as_ref().is_none_or(|p| p.bytes() == tensor.bytes())
            })
    }
}
