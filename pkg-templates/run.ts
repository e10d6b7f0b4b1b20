import { type DeviceName, rawDevice } from "./device.js";
import { type Bytes, bytesOf, call, engine, filesOf, free, namesOf, optionsOf, seedOf, settle } from "./engine.js";
import { InputError } from "./errors.js";
import { type Feeds, setFeeds } from "./feeds.js";
import { fromRaw, type Tensor } from "./tensor.js";

/** How a model is run. */
export interface RunOptions {
  /** Only these outputs. Default: all. */
  outputs?: readonly string[];
  /** The files that the model's tensors lie in, by the names that the model gives them. */
  externalData?: Readonly<Record<string, Bytes>>;
  /** Seeds the random numbers of a model that draws some. Default: 0. */
  seed?: number | bigint;
  /** Where to compute. Default: the device of `init`. */
  device?: DeviceName;
}

/**
 * Runs any forward ONNX model once: what it computes before or after training.
 *
 * Fails with `LoadError` for bytes that are no ONNX model, `UnsupportedError` for an operator that ontrain does not have,
 * and `InputError` for a missing or unknown input or one of a wrong type, rank or size.
 */
export async function runModel(model: Bytes, feeds: Feeds, options: RunOptions = {}): Promise<Record<string, Tensor>> {
  const { RawFeeds, RawSession } = await engine();
  const known = ["outputs", "externalData", "seed", "device"] as const;
  const { outputs, externalData, seed = 0, device } = optionsOf(options, known, "runModel");
  const bytes = bytesOf(model, "the model");
  const chosen = outputs && namesOf(outputs, "outputs");
  const start = seedOf(seed);
  const on = await rawDevice(device);
  const files = filesOf(externalData);
  const rawFeeds = new RawFeeds();
  try {
    const session = call(() => new RawSession(bytes, files, on, start));
    try {
      const names = call(() => session.outputNames());
      const unknown = chosen?.find((name) => !names.includes(name));
      if (unknown !== undefined) {
        throw new InputError(`the model has no output "${unknown}"; expected ${names.map((name) => `"${name}"`).join(", ")}`);
      }
      setFeeds(rawFeeds, call(() => session.inputNames()), feeds);
      const tensors = await settle(() => session.run(rawFeeds));
      const results = names.map((name, i) => [name, fromRaw(tensors[i] ?? [])] as const);
      return Object.fromEntries(results.filter(([name]) => chosen?.includes(name) ?? true));
    } finally {
      free(session);
    }
  } finally {
    free(rawFeeds);
    free(files);
  }
}
