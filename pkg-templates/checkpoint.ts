import type { RawCheckpointState } from "./ontrain.js";
import {
  type Bytes, bytesOf, call, describe, disposable, engine, free, Handle, nameOf, numberOf, optionsOf, type Queue,
} from "./engine.js";
import { InputError, StateError } from "./errors.js";
import { copyOf, dimsOf, fromRaw, onnxType, rawBytes, Tensor, type TensorLike } from "./tensor.js";

/**
 * What works on a state: the values that it holds are newer than the state's.
 * @internal
 */
export interface Worker {
  /** Writes its values into the state, all or none; the optimizer's with or without the parameters'. */
  save(state: RawCheckpointState, parameters: boolean): Promise<void>;
}

/**
 * The module that works on a state.
 * @internal
 */
export interface ParameterOwner extends Worker {
  /** The calls on the module. What is asked of the state meanwhile takes its turn among them. */
  readonly queue: Queue;
  readonly isFilled: boolean;
  get(name: string): Promise<Tensor>;
  set(name: string, tensor: Tensor): void;
}

/**
 * The state of a training: parameters, the optimizer's memory, properties. What ONNX Runtime's checkpoint file holds.
 *
 * While a `Module` and an `Optimizer` work on a state, it shows and saves their current values.
 */
export class CheckpointState {
  /** The parameters. */
  readonly parameters: Parameters;
  /** Numbers and texts that are kept with the checkpoint. */
  readonly properties: Properties;

  readonly #handle: Handle<RawCheckpointState>;
  #module: ParameterOwner | undefined;
  #optimizer: Worker | undefined;

  private constructor(raw: RawCheckpointState) {
    this.#handle = new Handle("CheckpointState", raw);
    this.parameters = new Parameters(() => this.#handle.raw, () => this.#module, (work) => this.#turn(work));
    this.properties = new Properties(() => this.#handle.raw);
  }

  /**
   * Reads a checkpoint file's bytes, ontrain's or ONNX Runtime's. Fails with `LoadError` if they are none, and with
   * `CheckpointError` if the checkpoint is damaged.
   */
  static async load(bytes: Bytes): Promise<CheckpointState> {
    const { RawCheckpointState } = await engine();
    const view = bytesOf(bytes, "the checkpoint");
    return new CheckpointState(call(() => new RawCheckpointState(view)));
  }

  /**
   * The bytes of the checkpoint file with the current values. Fails with `StateError` while a nominal checkpoint is
   * filled in part, and with `DeviceError` if the device of the module is lost; then the state is as it was.
   */
  async save(options: { includeOptimizerState?: boolean } = {}): Promise<Uint8Array> {
    const { includeOptimizerState = false } = optionsOf(options, ["includeOptimizerState"], "save");
    const raw = this.#handle.raw;
    return this.#turn(async () => {
      await this.#update(raw, includeOptimizerState);
      return call(() => raw.toBytes(includeOptimizerState));
    });
  }

  /** Has some parameter no value yet? */
  get isNominal(): boolean {
    const raw = this.#handle.raw;
    return this.#module === undefined ? call(() => raw.isNominal) : !this.#module.isFilled;
  }

  /** Frees the memory. A module that works on the state goes on, and can no longer be saved through it. */
  async release(): Promise<void> {
    const raw = this.#handle.take();
    if (raw !== undefined) await this.#turn(async () => free(raw));
  }

  /** Does work in its turn among the calls on the module, if there is one. */
  async #turn<T>(work: () => Promise<T>): Promise<T> {
    return this.#module === undefined ? work() : this.#module.queue.add(work);
  }

  /** Takes over the current values. */
  async #update(raw: RawCheckpointState, includeOptimizerState: boolean): Promise<void> {
    if (includeOptimizerState && this.#optimizer !== undefined) await this.#optimizer.save(raw, this.#module !== undefined);
    else await this.#module?.save(raw, true);
  }

  declare readonly [Symbol.dispose]: () => void;
  declare readonly [Symbol.asyncDispose]: () => Promise<void>;

  /** @internal */
  handle(): Handle<RawCheckpointState> {
    return this.#handle;
  }

  /**
   * Makes a module the owner of the newer values, for which there can be one.
   * @internal
   */
  bindModule(module: ParameterOwner): void {
    this.#module = module;
  }

  /** @internal */
  bindOptimizer(optimizer: Worker): void {
    this.#optimizer = optimizer;
  }

  /** @internal */
  checkFree(what: "Module" | "Optimizer"): void {
    if ((what === "Module" ? this.#module : this.#optimizer) === undefined) return;
    throw new StateError(`another ${what} works on this CheckpointState; release it first, or load the checkpoint once more`);
  }

  /**
   * Takes the values of a worker that is about to be released: of a module with its optimizer's. Without it after that, also
   * when they could not be had.
   * @internal
   */
  async unbind(worker: Worker): Promise<void> {
    if (worker !== this.#module && worker !== this.#optimizer) return;
    try {
      if (this.#handle.released) return;
      const raw = this.#handle.raw;
      await (worker === this.#module ? this.#update(raw, true) : worker.save(raw, false));
    } finally {
      if (worker === this.#module) this.#module = undefined;
      this.#optimizer = undefined;
    }
  }
}
disposable(CheckpointState);

/** The parameters of a `CheckpointState`. */
export class Parameters {
  readonly #state: () => RawCheckpointState;
  readonly #module: () => ParameterOwner | undefined;
  readonly #turn: <T>(work: () => Promise<T>) => Promise<T>;

  /** @internal */
  constructor(
    state: () => RawCheckpointState,
    module: () => ParameterOwner | undefined,
    turn: <T>(work: () => Promise<T>) => Promise<T>,
  ) {
    this.#state = state;
    this.#module = module;
    this.#turn = turn;
  }

  /** Names of all parameters. */
  get names(): string[] {
    return this.#names(false);
  }

  /** Names of those that are trained. */
  get trainableNames(): string[] {
    return this.#names(true);
  }

  #names(trainableOnly: boolean): string[] {
    const raw = this.#state();
    return call(() => raw.parameterNames(trainableOnly));
  }

  /** A parameter's current value. `InputError` for an unknown name, `StateError` if it is nominal. */
  async get(name: string): Promise<Tensor> {
    const key = nameOf(name, "the parameter's name");
    const raw = this.#state();
    return this.#turn(async () => (await this.#module()?.get(key)) ?? fromRaw(call(() => raw.parameter(key))));
  }

  /** Replaces a value, or fills it in a nominal state. `InputError` unless name, type and sizes are the parameter's. */
  async set(name: string, value: TensorLike): Promise<void> {
    const key = nameOf(name, "the parameter's name");
    const raw = this.#state();
    const tensor = copyOf(value);
    return this.#turn(async () => {
      this.#module()?.set(key, tensor);
      call(() => raw.setParameter(key, onnxType(tensor), dimsOf(tensor), rawBytes(tensor)));
    });
  }
}

/** A property's value. A whole number beyond 2^53 comes as a bigint. */
export type PropertyValue = number | bigint | string;

/** The properties of a `CheckpointState`: epoch, best score, notes. */
export class Properties {
  readonly #state: () => RawCheckpointState;

  /** @internal */
  constructor(state: () => RawCheckpointState) {
    this.#state = state;
  }

  /** Names of the properties, sorted. */
  get names(): string[] {
    const raw = this.#state();
    return call(() => raw.propertyNames());
  }

  /** A property, or undefined. */
  get(name: string): PropertyValue | undefined {
    const key = nameOf(name, "the property's name");
    const raw = this.#state();
    const value = call(() => raw.property(key)) as PropertyValue | undefined;
    if (typeof value !== "bigint") return value;
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }

  /**
   * Sets a property. Bigints and whole numbers within 2^53 are kept as 64-bit integers, other numbers as 32-bit floats.
   * Say `setInt` or `setFloat` to choose.
   */
  set(name: string, value: PropertyValue): void {
    if (typeof value === "string") {
      const key = nameOf(name, "the property's name");
      const raw = this.#state();
      call(() => raw.setString(key, value));
    } else if (typeof value === "bigint" || Number.isSafeInteger(value)) {
      this.setInt(name, value);
    } else {
      this.setFloat(name, value);
    }
  }

  /** Sets a property that is a 64-bit integer. */
  setInt(name: string, value: number | bigint): void {
    const key = nameOf(name, "the property's name");
    const raw = this.#state();
    const [whole] = Tensor.int64([value] as bigint[]).data;
    call(() => raw.setInt(key, whole ?? 0n));
  }

  /** Sets a property that is a 32-bit float. */
  setFloat(name: string, value: number): void {
    const key = nameOf(name, "the property's name");
    const raw = this.#state();
    const number = numberOf(value, `property "${key}"`);
    if (Number.isFinite(number) && !Number.isFinite(Math.fround(number))) {
      throw new InputError(`property "${key}" does not fit a 32-bit float; found ${describe(value)}`);
    }
    call(() => raw.setFloat(key, number));
  }
}
