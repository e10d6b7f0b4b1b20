// Trains, runs and generates on the npm package, for xtask/src/replay/package.rs: the part that is the same in Node
// (worker.mjs) and in a page (chromium.mjs).
//
// A job and its answer are JSON and bytes. In the JSON {"$bytes": [start, length]} stands for a part of the bytes, and
// {"$tensor": [type, dims, start, length]} for a tensor in them.

import {
  CheckpointState, generateArtifacts, init, LinearLRScheduler, Module, OntrainError, Optimizer, runModel, Tensor,
} from "ontrain";

const ARRAYS = {
  float32: Float32Array, uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array,
  int32: Int32Array, int64: BigInt64Array, bool: Uint8Array, float16: Uint16Array, float64: Float64Array,
  uint32: Uint32Array, uint64: BigUint64Array, bfloat16: Uint16Array,
};

/** Times that this program has handed work to a GPU. */
let submissions = 0;

/** Says where to compute: "wasm", "webgpu". */
export async function start(device) {
  if (device === "webgpu") {
    const { submit } = GPUQueue.prototype;
    GPUQueue.prototype.submit = function (...given) {
      submissions++;
      return submit.apply(this, given);
    };
  }
  await init({ device });
}

function read(text, bytes) {
  // A copy, so that it begins where an array of any type may begin.
  const part = (start, length) => bytes.buffer.slice(bytes.byteOffset + start, bytes.byteOffset + start + length);
  return JSON.parse(text, (_, value) => {
    if (value?.$bytes) return new Uint8Array(part(...value.$bytes));
    if (value?.$tensor) {
      const [type, dims, start, length] = value.$tensor;
      return new Tensor(type, new ARRAYS[type](part(start, length)), dims);
    }
    return value;
  });
}

function write(answer) {
  const parts = [];
  let length = 0;
  const put = ({ buffer, byteOffset, byteLength }) => {
    parts.push(new Uint8Array(buffer, byteOffset, byteLength));
    length += byteLength;
    return [length - byteLength, byteLength];
  };
  const text = JSON.stringify(answer, (_, value) => {
    if (value instanceof Tensor) return { $tensor: [value.type, value.dims, ...put(value.data)] };
    if (value instanceof Uint8Array) return { $bytes: put(value) };
    if (typeof value === "number" && !Number.isFinite(value)) return Number.isNaN(value) ? null : String(value);
    return value;
  });
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return { text, bytes };
}

/** Does a job; gives the answer in the same form. */
export async function work({ text, bytes }) {
  let answer;
  try {
    const { job, ...details } = read(text, bytes);
    const before = submissions;
    answer = await JOBS[job](details);
    answer.submissions = submissions - before;
  } catch (error) {
    // After anything but one of ontrain's own errors the engine may be unusable.
    answer = { error: String(error?.message ?? error), kind: error?.kind, broken: !(error instanceof OntrainError) };
  }
  return write(answer);
}
const pick = (names, feed) => {
  const known = Object.keys(feed).join(", ");
  const find = (name) => {
    if (!Object.hasOwn(feed, name)) throw new Error(`the model has an input "${name}"; the case has ${known}`);
    return [name, feed[name]];
  };
  return Object.fromEntries(names.map(find));
};

const JOBS = {
  async generate({ model, options }) {
    const { trainingModel, evalModel, optimizerModel, checkpoint } = await generateArtifacts(model, options);
    return { trainingModel, evalModel, optimizerModel, checkpoint };
  },

  async forward({ model, feed }) {
    return { outputs: Object.entries(await runModel(model, feed)) };
  },

  async train(job) {
    const state = await CheckpointState.load(job.checkpoint);
    const module = await Module.create({
      trainModel: job.trainingModel,
      evalModel: job.evalModel ?? undefined,
      state,
      seed: 0,
      nonFinite: job.nonFinite ? "return" : "error",
    });
    const optimizer = job.optimizerModel && (await Optimizer.create(module, { optimizerModel: job.optimizerModel }));
    const answer = { losses: [], rates: [] };
    try {
      await steps(job, module, optimizer, answer);
    } catch (error) {
      if (!(error instanceof OntrainError)) throw error;
      answer.stopped = error.message;
    }
    await optimizer?.release();
    await module.release();
    await state.release();
    return answer;
  },
};

/** The training itself, as `Live::run` in engine.rs does it. */
async function steps(job, module, optimizer, answer) {
  const names = module.inputNames(true);
  const batch = (i) => pick(names, job.batches[(job.first + i) % job.batches.length]);
  const { parameters } = module.state;
  const values = async (list, get) => Promise.all(list.map(async (name) => [name, await get(name)]));
  const evaluate = async () =>
    job.evalModel ? (await module.evalStep(pick(module.inputNames(false), job.batches[0]))).loss : undefined;
  let scheduler;
  if (optimizer) {
    answer.resumedAt = optimizer.stepCount;
    const { warmup, total, initial, constant } = job.rate;
    if (constant !== undefined) optimizer.setLearningRate(constant);
    else scheduler = await LinearLRScheduler.create(optimizer, warmup, total, initial);
  }
  const before = await evaluate();
  for (let i = 0; i < job.steps; i++) {
    const { loss, outputs } = await module.trainStep(batch(i));
    answer.losses.push(loss);
    if (i === 0) {
      answer.extraOutputs = module.outputNames(true).slice(1).map((name) => outputs[name]);
      answer.firstParameters = await values(parameters.names, (name) => module.getParameter(name));
      answer.gradients = await values(parameters.trainableNames, (name) => module.getGradient(name));
    }
    if (optimizer && (i + 1) % job.accumulate === 0) {
      answer.rates.push(optimizer.getLearningRate());
      await optimizer.step();
      await module.lazyResetGrad();
      await scheduler?.step();
    }
  }
  answer.parameters = await values(parameters.names, (name) => module.getParameter(name));
  if (job.evalModel) answer.eval = [before, await evaluate()];
  if (job.closing) answer.closingLoss = (await module.trainStep(batch(job.steps))).loss;
}

