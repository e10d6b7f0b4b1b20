import type { RawLinearLRScheduler, RawOptimizer } from "./ontrain.js";
import { CheckpointState, type Worker } from "./checkpoint.js";
import { type Bytes, bytesOf, call, describe, disposable, engine, Handle, numberOf, optionsOf } from "./engine.js";
import { InputError, StateError } from "./errors.js";
import { Module } from "./module.js";

/** What an `Optimizer` is made of. */
export interface OptimizerCreateOptions {
  /** The optimizer model's bytes. */
  optimizerModel: Bytes;
  /** Where the optimizer's memory is restored from, if it holds some. Default: the module's state. */
  state?: CheckpointState;
}

/** Steps a module's trainable parameters. */
export class Optimizer {
  /** The module. */
  readonly module: Module;

  readonly #handle: Handle<RawOptimizer>;
  readonly #worker: Worker;

  private constructor(raw: RawOptimizer, module: Module) {
    this.#handle = new Handle("Optimizer", raw);
    this.module = module;
    this.#worker = { save: (state) => call(() => raw.save(module.handle().raw, state)) };
    module.state.bindOptimizer(this.#worker);
  }

  /**
   * An optimizer for `module`. Its memory is saved with the module's state. Fails with `StateError` without an optimizer
   * model or when another optimizer works on the state; `LoadError` or `GraphError` if the bytes are no optimizer model;
   * `CheckpointError` if the state's memory does not fit the parameters.
   */
  static async create(module: Module, options: OptimizerCreateOptions): Promise<Optimizer> {
    const { RawOptimizer } = await engine();
    if (!(module instanceof Module)) throw new InputError(`this is not a Module; found ${describe(module)}`);
    const { optimizerModel, state = module.state } = optionsOf(options, ["optimizerModel", "state"], "Optimizer.create");
    if (optimizerModel === undefined || optimizerModel === null) {
      throw new StateError("there is no optimizer model; expected artifacts that were generated with an optimizer");
    }
    if (!(state instanceof CheckpointState)) {
      throw new InputError(`state is not a CheckpointState; found ${describe(state)}`);
    }
    const bytes = bytesOf(optimizerModel, "optimizerModel");
    const rawModule = module.handle().raw;
    module.state.checkFree("Optimizer");
    const rawState = state.handle().raw;
    return new Optimizer(call(() => new RawOptimizer(bytes, rawModule, rawState)), module);
  }

  /**
   * Updates the parameters from their gradients. Does not reset the gradients: call the module's `lazyResetGrad`.
   */
  async step(): Promise<void> {
    const raw = this.#handle.raw;
    const module = this.module.handle().raw;
    call(() => raw.step(module));
  }

  /** The learning rate of the next step. Default: 0.001, or what the state holds. */
  getLearningRate(): number {
    const raw = this.#handle.raw;
    return call(() => raw.learningRate);
  }

  /** Sets the learning rate; `InputError` unless it is finite and not negative. */
  setLearningRate(rate: number): void {
    const raw = this.#handle.raw;
    const number = numberOf(rate, "the learning rate");
    call(() => raw.setLearningRate(number));
  }

  /** Steps taken, those of a restored state included. */
  get stepCount(): number {
    const raw = this.#handle.raw;
    return call(() => raw.steps);
  }

  /** Frees the memory; what the optimizer remembers goes back to the module's state. */
  async release(): Promise<void> {
    if (this.#handle.released) return;
    try {
      if (!this.module.handle().released) this.module.state.unbind(this.#worker);
    } finally {
      this.#handle.release();
    }
  }

  declare readonly [Symbol.dispose]: () => void;

  /** @internal */
  handle(): Handle<RawOptimizer> {
    return this.#handle;
  }
}
disposable(Optimizer);

/**
 * Linear warm-up, then linear decay to zero: at optimizer step t the rate is `initial * t / max(1, warmup)` while
 * `t < warmup`, then `initial * max(0, (total - t) / max(1, total - warmup))`.
 */
export class LinearLRScheduler {
  readonly #handle: Handle<RawLinearLRScheduler>;
  readonly #optimizer: Optimizer;

  private constructor(raw: RawLinearLRScheduler, optimizer: Optimizer) {
    this.#handle = new Handle("LinearLRScheduler", raw);
    this.#optimizer = optimizer;
  }

  /** A schedule for `optimizer`, whose learning rate it sets at once. The counts are in optimizer steps. */
  static async create(
    optimizer: Optimizer,
    warmupStepCount: number,
    totalStepCount: number,
    initialLr: number,
  ): Promise<LinearLRScheduler> {
    const { RawLinearLRScheduler } = await engine();
    if (!(optimizer instanceof Optimizer)) throw new InputError(`this is not an Optimizer; found ${describe(optimizer)}`);
    const raw = optimizer.handle().raw;
    const warmup = countOf(warmupStepCount, "warmupStepCount");
    const total = countOf(totalStepCount, "totalStepCount");
    const rate = numberOf(initialLr, "initialLr");
    return new LinearLRScheduler(call(() => new RawLinearLRScheduler(raw, warmup, total, rate)), optimizer);
  }

  /** Sets the learning rate for the optimizer steps taken so far. Call it after each optimizer step. */
  async step(): Promise<void> {
    const raw = this.#handle.raw;
    const optimizer = this.#optimizer.handle().raw;
    call(() => raw.step(optimizer));
  }

  /** Frees the memory. */
  async release(): Promise<void> {
    this.#handle.release();
  }

  declare readonly [Symbol.dispose]: () => void;
}
disposable(LinearLRScheduler);

function countOf(value: unknown, what: string): number {
  if (Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 32) return value as number;
  throw new InputError(`${what} is not a number of steps; expected a whole number, 0 or more; found ${describe(value)}`);
}
