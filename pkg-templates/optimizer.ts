import type { RawLinearLRScheduler, RawModule, RawOptimizer } from "./ontrain.js";
import { CheckpointState, type Worker } from "./checkpoint.js";
import {
  type Bytes, bytesOf, call, describe, disposable, engine, free, Handle, numberOf, optionsOf, settle,
} from "./engine.js";
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
  #steps!: number;
  #rate!: number;
  /** Rates that have been set and whose turn has not come. */
  #setting = 0;

  private constructor(raw: RawOptimizer, module: Module, rawModule: RawModule) {
    this.#handle = new Handle("Optimizer", raw);
    this.module = module;
    this.#worker = { save: (state, parameters) => settle(() => raw.save(rawModule, state, parameters)) };
    this.refresh(raw);
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
    const rawState = state.handle().raw;
    return module.queue.add(() => {
      module.state.checkFree("Optimizer");
      return new Optimizer(call(() => new RawOptimizer(bytes, rawModule, rawState)), module, rawModule);
    });
  }

  /**
   * Updates the parameters from their gradients, on the device: it is not waited for. Does not reset the gradients: call the
   * module's `lazyResetGrad`.
   */
  async step(): Promise<void> {
    const raw = this.#handle.raw;
    const module = this.module.handle().raw;
    return this.module.queue.add(async () => {
      await settle(() => raw.step(module));
      this.refresh(raw);
    });
  }

  /** The learning rate of the next step. Default: 0.001, or what the state holds. */
  getLearningRate(): number {
    void this.#handle.raw; // fails if it has been released
    return this.#rate;
  }

  /** Sets the learning rate; `InputError` unless it is finite and not negative. */
  setLearningRate(rate: number): void {
    const raw = this.#handle.raw;
    const number = Math.fround(numberOf(rate, "the learning rate"));
    if (!(number >= 0 && number < Infinity)) {
      throw new InputError(`the learning rate cannot be used; expected a finite number, 0 or more; found ${rate}`);
    }
    this.#rate = number;
    this.#setting++;
    const set = this.module.queue.add(() => {
      this.#setting--;
      call(() => raw.setLearningRate(number));
      this.refresh(raw);
    });
    // Only of an engine that has stopped, which the next call says as well.
    set.catch(() => undefined);
  }

  /** Steps taken, those of a restored state included. */
  get stepCount(): number {
    void this.#handle.raw;
    return this.#steps;
  }

  /** Frees the memory; what the optimizer remembers goes back to the module's state, as by the module's `release`. */
  async release(): Promise<void> {
    const raw = this.#handle.take();
    await this.module.queue.add(async () => {
      try {
        await this.module.state.unbind(this.#worker);
      } finally {
        free(raw);
      }
    });
  }

  declare readonly [Symbol.dispose]: () => void;
  declare readonly [Symbol.asyncDispose]: () => Promise<void>;

  /** @internal */
  handle(): Handle<RawOptimizer> {
    return this.#handle;
  }

  /**
   * Takes over steps and rate as they are after a call, but for a rate that was set meanwhile.
   * @internal
   */
  refresh(raw: RawOptimizer): void {
    this.#steps = call(() => raw.steps());
    if (this.#setting === 0) this.#rate = call(() => raw.learningRate());
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
    return optimizer.module.queue.add(() => {
      const scheduler = call(() => new RawLinearLRScheduler(raw, warmup, total, rate));
      optimizer.refresh(raw);
      return new LinearLRScheduler(scheduler, optimizer);
    });
  }

  /** Sets the learning rate for the optimizer steps taken so far. Call it after each optimizer step. */
  async step(): Promise<void> {
    const raw = this.#handle.raw;
    const optimizer = this.#optimizer.handle().raw;
    return this.#optimizer.module.queue.add(() => {
      call(() => raw.step(optimizer));
      this.#optimizer.refresh(optimizer);
    });
  }

  /** Frees the memory. */
  async release(): Promise<void> {
    const raw = this.#handle.take();
    await this.#optimizer.module.queue.add(() => free(raw));
  }

  declare readonly [Symbol.dispose]: () => void;
  declare readonly [Symbol.asyncDispose]: () => Promise<void>;
}
disposable(LinearLRScheduler);

function countOf(value: unknown, what: string): number {
  if (Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 32) return value as number;
  throw new InputError(`${what} is not a number of steps; expected a whole number, 0 or more; found ${describe(value)}`);
}
