import type { RawGenerator } from "./ontrain.js";
import { type Bytes, bytesOf, call, describe, engine, filesOf, free, namesOf, numberOf, optionsOf } from "./engine.js";
import { InputError } from "./errors.js";
import { dimsOf, onnxType, rawBytes, Tensor, type TensorLike } from "./tensor.js";

/** The losses, by ONNX Runtime's names. `none`: the model's first output is the loss already. */
export type LossName = "MSELoss" | "CrossEntropyLoss" | "BCEWithLogitsLoss" | "L1Loss" | "none";

/** A loss and how it is computed. */
export interface LossOptions {
  type: LossName;
  /** How the losses of the elements become one number. Default: mean. */
  reduction?: "mean" | "sum";
  /** CrossEntropyLoss: a weight per class, float32 if these are plain numbers. */
  weight?: TensorLike | readonly number[];
  /** CrossEntropyLoss: a label that does not count. */
  ignoreIndex?: number | bigint;
  /** BCEWithLogitsLoss: a weight of positive targets, broadcast to the output. */
  posWeight?: TensorLike | readonly number[];
}

/** An optimizer and its constants. */
export interface OptimizerOptions {
  type: "AdamW" | "SGD";
  /** AdamW. Default: [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** AdamW. Default: 1e-6. */
  eps?: number;
  /** AdamW. Default: 0. */
  weightDecay?: number;
  /** AdamW: correct the bias of the moments. Default: true. */
  biasCorrection?: boolean;
  /** Scale all gradients down together when their joint L2 norm is above this. Default: never. */
  clipGradNorm?: number;
}

/** What to generate. */
export interface GenerateOptions {
  /** Parameters to train: names, or globs with `*` and `?`. */
  requiresGrad: readonly string[];
  /** Parameters that stay as they are but travel in the checkpoint: names or globs. */
  frozenParams?: readonly string[];
  /** Default: none. */
  loss?: LossName | LossOptions;
  /** Default: AdamW. `null`: no optimizer model. */
  optimizer?: "AdamW" | "SGD" | OptimizerOptions | null;
  /** Put before the names in `files`. */
  prefix?: string;
  /** Values of the graph that become outputs after the loss. */
  additionalOutputNames?: readonly string[];
  /** The model's outputs that the loss gets, in this order. Default: all. */
  lossInputNames?: readonly string[];
  /** Also make a checkpoint without values. */
  nominalCheckpoint?: boolean;
  /** The files that the model's tensors lie in, by the names that the model gives them. */
  externalData?: Readonly<Record<string, Bytes>>;
}

/** The generated files. ONNX Runtime 1.19 trains them too. */
export interface Artifacts {
  /** Forward, backward, accumulation of gradients. */
  trainingModel: Uint8Array;
  /** Forward and loss. */
  evalModel: Uint8Array;
  /** The optimizer's step. */
  optimizerModel?: Uint8Array;
  /** The parameters. */
  checkpoint: Uint8Array;
  /** Their names and types alone. */
  nominalCheckpoint?: Uint8Array;
  /** All of the above by ONNX Runtime's file names, with the prefix. */
  files: Record<string, Uint8Array>;
}

const OPTIONS = [
  "requiresGrad",
  "frozenParams",
  "loss",
  "optimizer",
  "prefix",
  "additionalOutputNames",
  "lossInputNames",
  "nominalCheckpoint",
  "externalData",
] as const;

/**
 * Generates the training artifacts of a forward ONNX model.
 *
 * Fails with `LoadError` for bytes that are no ONNX model; `GraphError` for a parameter that does not exist or is
 * listed in both lists, no trainable parameter, an unknown output; `GradientError` for a parameter that the loss does
 * not depend on, an operator without a gradient, a loss that is not a scalar; `UnsupportedError` for an operator that
 * ontrain does not have.
 */
export async function generateArtifacts(model: Bytes, options: GenerateOptions): Promise<Artifacts> {
  const { RawGenerator } = await engine();
  const given = optionsOf(options, OPTIONS, "generateArtifacts");
  const bytes = bytesOf(model, "the model");
  const files = filesOf(given.externalData);
  const generator = new RawGenerator();
  try {
    configure(generator, given);
    return call(() => {
      const raw = generator.generate(bytes, files);
      try {
        const { trainingModel, evalModel, optimizerModel, checkpoint, nominalCheckpoint } = raw;
        const optional = { ...(optimizerModel && { optimizerModel }), ...(nominalCheckpoint && { nominalCheckpoint }) };
        const artifacts = { trainingModel, evalModel, checkpoint, ...optional };
        return { ...artifacts, files: named(artifacts, given.prefix ?? "") };
      } finally {
        free(raw);
      }
    });
  } finally {
    free(generator);
    free(files);
  }
}

function configure(generator: RawGenerator, options: GenerateOptions): void {
  const train = namesOf(options.requiresGrad, "requiresGrad");
  const freeze = namesOf(options.frozenParams ?? [], "frozenParams");
  const additional = namesOf(options.additionalOutputNames ?? [], "additionalOutputNames");
  const lossInputs = namesOf(options.lossInputNames ?? [], "lossInputNames");
  call(() => {
    generator.parameters(train, freeze);
    generator.outputs(additional, lossInputs);
    generator.nominalCheckpoint(options.nominalCheckpoint === true);
  });
  setLoss(generator, options.loss ?? "none");
  if (options.optimizer !== null) setOptimizer(generator, options.optimizer ?? "AdamW");
}

function setLoss(generator: RawGenerator, given: LossName | LossOptions): void {
  const loss: LossOptions = typeof given === "string" ? { type: given } : given;
  optionsOf(loss, ["type", "reduction", "weight", "ignoreIndex", "posWeight"], "loss");
  const only = (option: keyof LossOptions, type: LossName): void => {
    if (loss[option] === undefined || loss.type === type) return;
    throw new InputError(`the loss ${loss.type} has no ${option}: that belongs to ${type}`);
  };
  only("weight", "CrossEntropyLoss");
  only("ignoreIndex", "CrossEntropyLoss");
  only("posWeight", "BCEWithLogitsLoss");
  const weight = loss.weight ?? loss.posWeight;
  if (weight !== undefined) {
    const tensor = Array.isArray(weight) ? Tensor.float32(weight) : Tensor.from(weight as TensorLike);
    call(() => generator.weight(onnxType(tensor), dimsOf(tensor), rawBytes(tensor)));
  }
  if (loss.ignoreIndex !== undefined) {
    const [label] = Tensor.int64([loss.ignoreIndex] as bigint[]).data;
    call(() => generator.ignoreIndex(label ?? 0n));
  }
  const { type, reduction = "mean" } = loss;
  call(() => generator.loss(String(type), String(reduction)));
}

function setOptimizer(generator: RawGenerator, given: "AdamW" | "SGD" | OptimizerOptions): void {
  const options: OptimizerOptions = typeof given === "string" ? { type: given } : given;
  const clip = options.clipGradNorm === undefined ? undefined : numberOf(options.clipGradNorm, "clipGradNorm");
  switch (options.type) {
    case "AdamW": {
      optionsOf(options, ["type", "betas", "eps", "weightDecay", "biasCorrection", "clipGradNorm"], "AdamW");
      const { betas = [0.9, 0.999], eps = 1e-6, weightDecay = 0, biasCorrection = true } = options;
      if (!Array.isArray(betas) || betas.length !== 2) throw new InputError("betas are two numbers");
      const [beta1, beta2] = [numberOf(betas[0], "betas[0]"), numberOf(betas[1], "betas[1]")];
      const [epsilon, decay] = [numberOf(eps, "eps"), numberOf(weightDecay, "weightDecay")];
      call(() => generator.adamw(beta1, beta2, epsilon, decay, biasCorrection, clip));
      return;
    }
    case "SGD":
      optionsOf(options, ["type", "clipGradNorm"], "SGD");
      call(() => generator.sgd(clip));
      return;
    default:
      throw new InputError(`there is no optimizer ${describe(options.type)}; expected AdamW, SGD or null`);
  }
}

function named(artifacts: Omit<Artifacts, "files">, prefix: string): Record<string, Uint8Array> {
  const { trainingModel, evalModel, optimizerModel, checkpoint, nominalCheckpoint } = artifacts;
  return {
    [`${prefix}training_model.onnx`]: trainingModel,
    [`${prefix}eval_model.onnx`]: evalModel,
    ...(optimizerModel && { [`${prefix}optimizer_model.onnx`]: optimizerModel }),
    [`${prefix}checkpoint`]: checkpoint,
    ...(nominalCheckpoint && { [`${prefix}nominal_checkpoint`]: nominalCheckpoint }),
  };
}
