import type { RawFeeds, RawModule, RawTask, StepAnswer } from "./ontrain.js";
import { CheckpointState, type ParameterOwner } from "./checkpoint.js";
import { type DeviceName, rawDevice } from "./device.js";
import {
  type Bytes, bytesOf, call, describe, disposable, engine, free, Handle, nameOf, namesOf, optionsOf, Queue, randomSeed,
  seedOf, settle,
} from "./engine.js";
import { InputError, StateError } from "./errors.js";
import { FeedPlaces, type Feeds } from "./feeds.js";
import { copyOf, dimsOf, fromRaw, onnxType, rawBytes, Tensor, type TensorLike } from "./tensor.js";

/** What a `Module` is made of. */
export interface ModuleOptions {
  /** The training model's bytes. */
  trainModel: Bytes;
  /** The eval model's bytes; needed for `evalStep` and for exporting. */
  evalModel?: Bytes;
  /** The parameters, of the same artifacts. The module works on the state until it is released. */
  state: CheckpointState;
  /** Seeds the random numbers of Dropout. Default: a random seed. */
  seed?: number | bigint;
  /** A train step whose loss is NaN or infinite: an error (default), or returned as ONNX Runtime does. */
  nonFinite?: "error" | "return";
  /** Where to compute. Default: the device of `init`. */
  device?: DeviceName;
}

/** What a step gives. */
export interface StepResult {
  /** The loss. */
  loss: number;
  /** The outputs by name: the loss as a tensor, and the additional outputs. */
  outputs: Record<string, Tensor>;
}

/**
 * A model in training.
 *
 * Calls on a module, its optimizer, schedulers and state are made one after the other in the order in which they were asked
 * for, also where nobody awaits the one before. Inputs are copied when a call is asked for.
 */
export class Module {
  /** The state that the module works on. */
  readonly state: CheckpointState;
  /** Seed of the random numbers. */
  readonly seed: bigint;
  /** Where it computes. */
  readonly device: DeviceName;
  /** @internal */
  readonly queue = new Queue();

  readonly #handle: Handle<RawModule>;
  readonly #train: Side;
  readonly #eval: Side | undefined;
  readonly #owner: ParameterOwner;
  #training = true;

  private constructor(raw: RawModule, sides: [Side, Side | undefined], state: CheckpointState, seed: bigint, device: DeviceName) {
    this.#handle = new Handle("Module", raw);
    [this.#train, this.#eval] = sides;
    this.state = state;
    this.seed = seed;
    this.device = device;
    this.#owner = {
      queue: this.queue,
      get isFilled() {
        return call(() => raw.isFilled);
      },
      save: (target) => settle(() => raw.save(target)),
      get: async (name) => fromRaw(await settle(() => raw.parameter(name))),
      set: (name, tensor) => call(() => raw.setParameter(name, onnxType(tensor), dimsOf(tensor), rawBytes(tensor))),
    };
    state.bindModule(this.#owner);
  }

  /**
   * Loads the models. Fails with `LoadError` for bytes that are no ONNX model, `CheckpointError` if the checkpoint is
   * another model's, `StateError` if another module works on the state, and `DeviceError` if there is no such device or the
   * parameters do not fit it.
   */
  static async create(options: ModuleOptions): Promise<Module> {
    const { RawModule } = await engine();
    const known = ["trainModel", "evalModel", "state", "seed", "nonFinite", "device"] as const;
    const { trainModel, evalModel, state, seed, nonFinite = "error", device } = optionsOf(options, known, "Module.create");
    if (!(state instanceof CheckpointState)) {
      throw new InputError(`state is not a CheckpointState; found ${describe(state)}`);
    }
    if (nonFinite !== "error" && nonFinite !== "return") {
      throw new InputError(`nonFinite is neither "error" nor "return"; found ${describe(nonFinite)}`);
    }
    const train = bytesOf(trainModel, "trainModel");
    const evaluate = evalModel === undefined ? undefined : bytesOf(evalModel, "evalModel");
    const chosen = seed === undefined ? await randomSeed() : seedOf(seed);
    const on = await rawDevice(device);
    state.checkFree("Module");
    const rawState = state.handle().raw;
    return call(() => {
      const raw = new RawModule(train, evaluate, rawState, on, chosen);
      if (nonFinite === "return") raw.returnNonFinite();
      const side = (training: boolean): Side => ({
        training,
        inputs: raw.inputNames(training),
        outputs: raw.outputNames(training),
        places: new FeedPlaces(),
      });
      const sides: [Side, Side | undefined] = [side(true), evaluate && side(false)];
      return new Module(raw, sides, state, chosen, on.name);
    });
  }

  /**
   * Forward and backward: gives the loss and adds to the gradients (overwrites them in the first step and after
   * `lazyResetGrad`). Fails with `InputError` for a missing or unknown input, a wrong type, rank or size, or a label out
   * of range; with `StateError` for a nominal checkpoint that is not filled, or a loss that is not finite (see `nonFinite`);
   * with `DeviceError` if the device is lost or has not enough memory.
   */
  async trainStep(feeds: Feeds): Promise<StepResult> {
    return this.#step(this.#train, feeds);
  }

  /**
   * Begins a train step without waiting for its loss, so that a GPU always has work. `readLoss` gives the loss of the step
   * begun last.
   *
   * Fails as `trainStep`; but on a GPU a label out of range or a loss that is not finite is found later, and comes from the
   * next call that waits for the device: `readLoss`, `trainStep`, `evalStep`, one that reads parameters or saves them. From
   * such a step on nothing is written to parameters, gradients and the optimizer's memory until it has been reported.
   */
  async startTrainStep(feeds: Feeds): Promise<void> {
    return this.#with(this.#train, feeds, (raw, given) => settle(() => raw.startTrainStep(given)));
  }

  /** Waits for the train step begun last; gives its loss and outputs. `StateError` before the first step. */
  async readLoss(): Promise<StepResult> {
    const raw = this.#handle.raw;
    return this.queue.add(() => resultOf(this.#train, () => raw.readLoss()));
  }

  /** Forward with the eval model. `StateError` if there is none; otherwise as `trainStep`. */
  async evalStep(feeds: Feeds): Promise<StepResult> {
    return this.#step(this.#side(false), feeds);
  }

  /** `trainStep` or `evalStep`, by the mode. */
  async step(feeds: Feeds): Promise<StepResult> {
    return this.#step(this.#side(this.#training), feeds);
  }

  #step(side: Side, feeds: Feeds): Promise<StepResult> {
    return this.#with(side, feeds, (raw, given) => {
      return resultOf(side, () => (side.training ? raw.trainStep(given) : raw.evalStep(given)));
    });
  }

  /** Does work on inputs in its turn. */
  #with<T>(side: Side, feeds: Feeds, work: (raw: RawModule, given: RawFeeds) => Promise<T>): Promise<T> {
    const raw = this.#handle.raw;
    const given = side.places.take(side.inputs, feeds);
    return this.queue.add(async () => {
      try {
        return await work(raw, given);
      } finally {
        side.places.put(given);
      }
    });
  }

  #side(training: boolean): Side {
    void this.#handle.raw; // fails if it has been released
    const side = training ? this.#train : this.#eval;
    if (side === undefined) throw new StateError("the module was made without an eval model");
    return side;
  }

  /** Lets the next train step overwrite the gradients instead of adding to them. */
  async lazyResetGrad(): Promise<void> {
    return this.#call((raw) => raw.lazyResetGrad());
  }

  /** Does what needs not wait for the device, in its turn. */
  #call<T>(work: (raw: RawModule) => T): Promise<T> {
    const raw = this.#handle.raw;
    return this.queue.add(() => call(() => work(raw)));
  }

  /** Does what may have to wait for the device, in its turn. */
  #settle<T>(work: (raw: RawModule) => T | RawTask): Promise<T> {
    const raw = this.#handle.raw;
    return this.queue.add(() => settle(() => work(raw)));
  }

  /** Is the module in train mode? It is when it is made. */
  get isTraining(): boolean {
    void this.#handle.raw;
    return this.#training;
  }

  /** Train mode, or with `false` eval mode: what `step` does. */
  train(mode = true): void {
    void this.#handle.raw;
    this.#training = mode;
  }

  /** Eval mode. */
  eval(): void {
    this.train(false);
  }

  /** Names of the inputs of the training (or eval) model, in order. Default: of the current mode. */
  inputNames(training = this.isTraining): string[] {
    return [...this.#side(training).inputs];
  }

  /** Names of the outputs of the training (or eval) model, in order: the loss first. Default: of the current mode. */
  outputNames(training = this.isTraining): string[] {
    return [...this.#side(training).outputs];
  }

  /** A parameter's current value. */
  async getParameter(name: string): Promise<Tensor> {
    const key = nameOf(name, "the parameter's name");
    return fromRaw(await this.#settle((raw) => raw.parameter(key)));
  }

  /** Replaces a parameter's value, or fills it; `InputError` if type or sizes differ. */
  async setParameter(name: string, value: TensorLike): Promise<void> {
    const key = nameOf(name, "the parameter's name");
    const tensor = copyOf(value);
    return this.#call((raw) => raw.setParameter(key, onnxType(tensor), dimsOf(tensor), rawBytes(tensor)));
  }

  /** The gradient gathered for a trainable parameter: zeros before the first train step. */
  async getGradient(name: string): Promise<Tensor> {
    const key = nameOf(name, "the parameter's name");
    return fromRaw(await this.#settle((raw) => raw.gradient(key)));
  }

  /** Number of elements of all (trainable) parameters together. */
  async getParametersSize(trainableOnly = true): Promise<number> {
    return this.#call((raw) => raw.parametersSize(trainableOnly));
  }

  /** All (trainable) parameters one after the other, as one float32 vector, in the order of the training model. */
  async getContiguousParameters(trainableOnly = true): Promise<Tensor<"float32">> {
    return fromRaw(await this.#settle((raw) => raw.contiguousParameters(trainableOnly))) as Tensor<"float32">;
  }

  /** Fills the (trainable) parameters from such a vector, or its bytes. `InputError` if it has another length. */
  async loadParametersBuffer(values: Float32Array | Uint8Array, trainableOnly = true): Promise<void> {
    const floats = floatsOf(values);
    return this.#call((raw) => raw.loadContiguousParameters(floats, trainableOnly));
  }

  /**
   * An ONNX model for inference: the eval model cut at `outputNames` (any of its values), with the trained values as
   * initializers. Needs an eval model.
   */
  async exportModelForInferencing(outputNames: readonly string[]): Promise<Uint8Array> {
    const names = namesOf(outputNames, "outputNames").slice();
    return this.#settle((raw) => raw.exportModelForInferencing(names));
  }

  /** What a step on these inputs does, as text: kernels, memory, floating-point operations. Default: of the current mode. */
  async describePlan(feeds: Feeds, training = this.isTraining): Promise<string> {
    return this.#with(this.#side(training), feeds, (raw, given) => settle(() => raw.plan(training, given)));
  }

  /**
   * Frees the memory; the parameters' values and what the optimizer remembers go back to the state. Fails with `DeviceError`
   * if the device is lost: then the state is as it was last saved. It is free for another module in any case.
   */
  async release(): Promise<void> {
    const raw = this.#handle.take();
    await this.queue.add(async () => {
      try {
        await this.state.unbind(this.#owner);
      } finally {
        free(raw);
        this.#train.places.free();
        this.#eval?.places.free();
      }
    });
  }

  declare readonly [Symbol.dispose]: () => void;
  declare readonly [Symbol.asyncDispose]: () => Promise<void>;

  /** @internal */
  handle(): Handle<RawModule> {
    return this.#handle;
  }
}
disposable(Module);

/** The training or the eval model. */
interface Side {
  readonly training: boolean;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly places: FeedPlaces;
}

async function resultOf(side: Side, step: () => StepAnswer | RawTask): Promise<StepResult> {
  const [loss, ...tensors] = await settle(step);
  const outputs = side.outputs.map((name, i) => [name, fromRaw(tensors[i] ?? [])] as const);
  return { loss, outputs: Object.fromEntries(outputs) };
}

/** A copy, which may begin where a float may. */
function floatsOf(values: unknown): Float32Array {
  const bytes = bytesOf(values, "the vector of parameters").slice();
  if (bytes.byteLength % 4 !== 0) {
    throw new InputError(`the vector of parameters is not made of 32-bit floats; found ${bytes.byteLength} bytes`);
  }
  return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
}
