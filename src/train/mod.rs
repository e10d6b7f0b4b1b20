//! Training with artifacts: [`Module`] runs the training and eval models, [`Optimizer`] the optimizer
//! model, [`LinearLRScheduler`] moves its learning rate. The names are ONNX Runtime's.

mod model;
mod module;
mod optimizer;
mod parameters;
mod scheduler;
mod session;

pub use module::{Module, NonFinite};
pub use optimizer::Optimizer;
pub use scheduler::LinearLRScheduler;
pub use session::Session;
