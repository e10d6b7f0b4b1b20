/// <reference lib="esnext.disposable" preserve="true" />
export { device, type Device, type DeviceName, init, type InitOptions } from "./device.js";
export { type Bytes, type EngineSource } from "./engine.js";
export { Tensor, type TensorData, type TensorDataMap, type TensorLike, type TensorType, type TensorValues } from "./tensor.js";
export {
  generateArtifacts,
  type Artifacts,
  type GenerateOptions,
  type LossName,
  type LossOptions,
  type OptimizerOptions,
} from "./artifacts.js";
export { CheckpointState, type Parameters, type Properties, type PropertyValue } from "./checkpoint.js";
export { type Feeds } from "./feeds.js";
export { Module, type ModuleOptions, type StepResult } from "./module.js";
export { LinearLRScheduler, Optimizer, type OptimizerCreateOptions } from "./optimizer.js";
export { runModel, type RunOptions } from "./run.js";
export {
  CheckpointError,
  DeviceError,
  type ErrorKind,
  GradientError,
  GraphError,
  InputError,
  LoadError,
  OntrainError,
  PlanError,
  ShapeError,
  StateError,
  UnsupportedError,
} from "./errors.js";
