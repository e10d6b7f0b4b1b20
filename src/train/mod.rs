//! Training with artifacts: [`Module`] runs the training and eval models, [`Optimizer`] the optimizer
//! model, [`LinearLRScheduler`] moves its learning rate; [`Trainer`] is the loop
//! around them. The names are ONNX Runtime's.

pub mod data;
pub mod metrics;
mod model;
mod module;
mod optimizer;
mod parameters;
mod scheduler;
mod self_check;
mod session;
mod trainer;

pub use module::{Module, NonFinite};
pub use optimizer::Optimizer;
pub use scheduler::LinearLRScheduler;
pub use self_check::self_check;
pub use session::Session;
pub use trainer::{Evaluation, Position, TrainStep, Trainer, TrainerOptions, evaluate};
