import type { RawFeeds, RawModule } from "./ontrain.js";
import { CheckpointState, type ParameterOwner } from "./checkpoint.js";
import {
  type Bytes, bytesOf, call, describe, disposable, engine, Handle, nameOf, namesOf, optionsOf, randomSeed, seedOf,
} from "./engine.js";
import { InputError } from "./errors.js";
import { type Feeds, setFeeds } from "./feeds.js";
import { dimsOf, fromRaw, onnxType, rawBytes, Tensor, type TensorLike } from "./tensor.js";

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
}

/** What a step gives. */
export interface StepResult {
  /** The loss. */
  loss: number;
  /** The outputs by name: the loss as a tensor, and the additional outputs. */
  outputs: Record<string, Tensor>;
}

/** A model in training. */
export class Module {
  /** The state that the module works on. */
  readonly state: CheckpointState;
  /** Seed of the random numbers. */
  readonly seed: bigint;

  readonly #handle: Handle<RawModule>;
  readonly #train: Side;
  readonly #eval: Side;
  readonly #owner: ParameterOwner;

  private constructor(raw: RawModule, feeds: [RawFeeds, RawFeeds], state: CheckpointState, seed: bigint) {
    this.#handle = new Handle("Module", raw);
    this.#train = { training: true, feeds: new Handle("Module", feeds[0]) };
    this.#eval = { training: false, feeds: new Handle("Module", feeds[1]) };
    this.state = state;
    this.seed = seed;
    this.#owner = {
      save: (target) => call(() => raw.saveParameters(target)),
      get: (name) => call(() => raw.parameter(name)),
      set: (name, tensor) => call(() => raw.setParameter(name, onnxType(tensor), dimsOf(tensor), rawBytes(tensor))),
    };
    state.bindModule(this.#owner);
  }

  /**
   * Loads the models. Fails with `LoadError` for bytes that are no ONNX model, `CheckpointError` if the checkpoint is
   * another model's, and `StateError` if another module works on the state.
   */
  static async create(options: ModuleOptions): Promise<Module> {
    const { RawFeeds, RawModule } = await engine();
    const known = ["trainModel", "evalModel", "state", "seed", "nonFinite"] as const;
    const { trainModel, evalModel, state, seed, nonFinite = "error" } = optionsOf(options, known, "Module.create");
    if (!(state instanceof CheckpointState)) {
      throw new InputError(`state is not a CheckpointState; found ${describe(state)}`);
    }
    if (nonFinite !== "error" && nonFinite !== "return") {
      throw new InputError(`nonFinite is neither "error" nor "return"; found ${describe(nonFinite)}`);
    }
    const train = bytesOf(trainModel, "trainModel");
    const evaluate = evalModel === undefined ? undefined : bytesOf(evalModel, "evalModel");
    const chosen = seed === undefined ? await randomSeed() : seedOf(seed);
    state.checkFree("Module");
    const rawState = state.handle().raw;
    const raw = call(() => new RawModule(train, evaluate, rawState, chosen));
    if (nonFinite === "return") call(() => raw.returnNonFinite());
    return new Module(raw, [new RawFeeds(), new RawFeeds()], state, chosen);
  }

  /**
   * Forward and backward: gives the loss and adds to the gradients (overwrites them in the first step and after
   * `lazyResetGrad`). Fails with `InputError` for a missing or unknown input, a wrong type, rank or size, or a label out
   * of range; with `StateError` for a nominal checkpoint that is not filled, or a loss that is not finite (see `nonFinite`).
   */
  async trainStep(feeds: Feeds): Promise<StepResult> {
    return this.#step(this.#train, feeds);
  }

  /** Forward with the eval model. `StateError` if there is none; otherwise as `trainStep`. */
  async evalStep(feeds: Feeds): Promise<StepResult> {
    return this.#step(this.#eval, feeds);
  }

  /** `trainStep` or `evalStep`, by the mode. */
  async step(feeds: Feeds): Promise<StepResult> {
    return this.#step(this.isTraining ? this.#train : this.#eval, feeds);
  }

  #step(side: Side, feeds: Feeds): StepResult {
    const raw = this.#handle.raw;
    setFeeds(side.feeds.raw, namesFor(side, raw).inputs, feeds);
    return call(() => {
      const loss = side.training ? raw.trainStep(side.feeds.raw) : raw.evalStep(side.feeds.raw);
      const outputs: Record<string, Tensor> = {};
      namesFor(side, raw).outputs.forEach((name, i) => {
        outputs[name] = fromRaw(raw.output(side.training, i) ?? []);
      });
      return { loss, outputs };
    });
  }

  /** Lets the next train step overwrite the gradients instead of adding to them. */
  async lazyResetGrad(): Promise<void> {
    const raw = this.#handle.raw;
    call(() => raw.lazyResetGrad());
  }

  /** Is the module in train mode? It is when it is made. */
  get isTraining(): boolean {
    const raw = this.#handle.raw;
    return call(() => raw.isTraining);
  }

  /** Train mode, or with `false` eval mode: what `step` does. */
  train(mode = true): void {
    const raw = this.#handle.raw;
    call(() => raw.train(mode));
  }

  /** Eval mode. */
  eval(): void {
    this.train(false);
  }

  /** Names of the inputs of the training (or eval) model, in order. Default: of the current mode. */
  inputNames(training = this.isTraining): string[] {
    return [...namesFor(training ? this.#train : this.#eval, this.#handle.raw).inputs];
  }

  /** Names of the outputs of the training (or eval) model, in order: the loss first. Default: of the current mode. */
  outputNames(training = this.isTraining): string[] {
    return [...namesFor(training ? this.#train : this.#eval, this.#handle.raw).outputs];
  }

  /** A parameter's current value. */
  async getParameter(name: string): Promise<Tensor> {
    const key = nameOf(name, "the parameter's name");
    const raw = this.#handle.raw;
    return fromRaw(call(() => raw.parameter(key)));
  }

  /** Replaces a parameter's value, or fills it; `InputError` if type or sizes differ. */
  async setParameter(name: string, value: TensorLike): Promise<void> {
    const key = nameOf(name, "the parameter's name");
    const raw = this.#handle.raw;
    const tensor = Tensor.from(value);
    call(() => raw.setParameter(key, onnxType(tensor), dimsOf(tensor), rawBytes(tensor)));
  }

  /** The gradient gathered for a trainable parameter: zeros before the first train step. */
  async getGradient(name: string): Promise<Tensor> {
    const key = nameOf(name, "the parameter's name");
    const raw = this.#handle.raw;
    return fromRaw(call(() => raw.gradient(key)));
  }

  /** Number of elements of all (trainable) parameters together. */
  async getParametersSize(trainableOnly = true): Promise<number> {
    const raw = this.#handle.raw;
    return call(() => raw.parametersSize(trainableOnly));
  }

  /** All (trainable) parameters one after the other, as one float32 vector, in the order of the training model. */
  async getContiguousParameters(trainableOnly = true): Promise<Tensor<"float32">> {
    const raw = this.#handle.raw;
    return fromRaw(call(() => raw.contiguousParameters(trainableOnly))) as Tensor<"float32">;
  }

  /** Fills the (trainable) parameters from such a vector, or its bytes. `InputError` if it has another length. */
  async loadParametersBuffer(values: Float32Array | Uint8Array, trainableOnly = true): Promise<void> {
    const raw = this.#handle.raw;
    const floats = values instanceof Float32Array ? values : floatsOf(values);
    call(() => raw.loadContiguousParameters(floats, trainableOnly));
  }

  /**
   * An ONNX model for inference: the eval model cut at `outputNames` (any of its values), with the trained values as
   * initializers. Needs an eval model.
   */
  async exportModelForInferencing(outputNames: readonly string[]): Promise<Uint8Array> {
    const names = namesOf(outputNames, "outputNames");
    const raw = this.#handle.raw;
    return call(() => raw.exportModelForInferencing(names));
  }

  /** What a step on these inputs does, as text: kernels, memory, floating-point operations. Default: of the current mode. */
  async describePlan(feeds: Feeds, training = this.isTraining): Promise<string> {
    const raw = this.#handle.raw;
    const side = training ? this.#train : this.#eval;
    setFeeds(side.feeds.raw, namesFor(side, raw).inputs, feeds);
    return call(() => raw.plan(training, side.feeds.raw));
  }

  /** Frees the memory; the parameters' values go back to the state. */
  async release(): Promise<void> {
    if (this.#handle.released) return;
    try {
      this.state.unbind(this.#owner);
    } finally {
      for (const handle of [this.#handle, this.#train.feeds, this.#eval.feeds]) handle.release();
    }
  }

  declare readonly [Symbol.dispose]: () => void;

  /** @internal */
  handle(): Handle<RawModule> {
    return this.#handle;
  }
}
disposable(Module);

/** The training or the eval model. */
interface Side {
  training: boolean;
  feeds: Handle<RawFeeds>;
  names?: { inputs: string[]; outputs: string[] };
}

function namesFor(side: Side, raw: RawModule): { inputs: string[]; outputs: string[] } {
  const ask = () => ({ inputs: raw.inputNames(side.training), outputs: raw.outputNames(side.training) });
  side.names ??= call(ask);
  return side.names;
}

function floatsOf(values: unknown): Float32Array {
  const bytes = bytesOf(values, "the vector of parameters");
  if (bytes.byteLength % 4 !== 0) {
    throw new InputError(`the vector of parameters is not made of 32-bit floats; found ${bytes.byteLength} bytes`);
  }
  // A copy where the bytes do not begin where a float may.
  const aligned = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice();
  return new Float32Array(aligned.buffer, aligned.byteOffset, aligned.byteLength / 4);
}
