// The parts of `cargo xtask demo`, each a process of its own. MNIST lies in the folder MNIST, files go through WORK.
//
//   node demo.mjs train MNIST WORK        generate, train an epoch, evaluate, save; then some steps more
//   node demo.mjs resume MNIST WORK       the same further steps from the saved checkpoint; evaluate; export
//   node demo.mjs onnxruntime MNIST WORK  the exported model's accuracy in onnxruntime-node
//
// Each writes what it found to WORK/<part>.json.

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { read } from "./fixtures.mjs";

const BATCH = 32;
const RATE = 3e-3;
const WARMUP = 50;
const FURTHER = 100;
const PIXELS = 28 * 28;

/** A set of MNIST: pixels in [0, 1] and labels. */
async function digits(folder, name) {
  const images = await readFile(join(folder, `${name}-images-idx3-ubyte`));
  const labels = await readFile(join(folder, `${name}-labels-idx1-ubyte`));
  const count = images.readUInt32BE(4);
  if (images.readUInt32BE(0) !== 0x803 || labels.readUInt32BE(0) !== 0x801 || labels.readUInt32BE(4) !== count) {
    throw new Error(`${folder} does not hold MNIST's ${name} set`);
  }
  const pixels = Float32Array.from(images.subarray(16), (byte) => byte / 255);
  return { count, pixels, labels: BigInt64Array.from(labels.subarray(8), BigInt) };
}

/** The images `order[from..from + size]` and their labels. */
function batch({ pixels, labels }, order, from, size) {
  const input = new Float32Array(size * PIXELS);
  const label = new BigInt64Array(size);
  for (let i = 0; i < size; i++) {
    const at = order[from + i];
    input.set(pixels.subarray(at * PIXELS, (at + 1) * PIXELS), i * PIXELS);
    label[i] = labels[at];
  }
  return {
    input: { type: "float32", data: input, dims: [size, 1, 28, 28] },
    labels: { type: "int64", data: label, dims: [size] },
  };
}

/** 0..count in an order that is the same in each run. */
function shuffled(count) {
  const order = Uint32Array.from({ length: count }, (_, i) => i);
  let state = 2024;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

/** How many of the test images get their own label. `scores` gives ten numbers per image. */
async function accuracy(set, scores) {
  const order = Uint32Array.from({ length: set.count }, (_, i) => i);
  const size = 500;
  let right = 0;
  for (let from = 0; from < set.count; from += size) {
    const feeds = batch(set, order, from, size);
    const output = await scores(feeds);
    for (let i = 0; i < size; i++) {
      const row = output.subarray(i * 10, i * 10 + 10);
      right += row.indexOf(Math.max(...row)) === Number(feeds.labels.data[i]) ? 1 : 0;
    }
  }
  return (100 * right) / set.count;
}

/** Trains `steps` steps; tells how it goes; gives the milliseconds of each step and the last loss. */
async function train({ module, optimizer, scheduler }, set, order, steps, first = 0) {
  const times = [];
  const start = performance.now();
  let mean;
  let last;
  for (let step = 0; step < steps; step++) {
    const feeds = batch(set, order, ((first + step) * BATCH) % (set.count - BATCH + 1), BATCH);
    const began = performance.now();
    const { loss } = await module.trainStep(feeds);
    await optimizer.step();
    await module.lazyResetGrad();
    await scheduler.step();
    times.push(performance.now() - began);
    mean = mean === undefined ? loss : 0.98 * mean + 0.02 * loss;
    last = loss;
    progress(step + 1, steps, mean, (performance.now() - start) / 1000);
  }
  return { times, last };
}

let shown = 0;
function progress(step, steps, loss, seconds) {
  const line = process.stdout.isTTY ?? false;
  const now = performance.now();
  if (step < steps && now - shown < (line ? 100 : 2000)) return;
  shown = now;
  const rate = (step * BATCH) / seconds;
  const eta = Math.ceil((seconds / step) * (steps - step));
  const text = `  step ${step}/${steps}  loss ${loss.toFixed(4)}  ${rate.toFixed(0)} images/s  ETA ${eta} s`;
  process.stdout.write(line ? `\r${text}\x1b[K${step === steps ? "\n" : ""}` : `${text}\n`);
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

/** A training of `steps` steps in all, from the start or from where `checkpoint` was saved. */
async function session(artifacts, checkpoint, steps) {
  const { CheckpointState, LinearLRScheduler, Module, Optimizer } = await import("ontrain");
  const state = await CheckpointState.load(checkpoint);
  const { trainingModel: trainModel, evalModel, optimizerModel } = artifacts;
  const module = await Module.create({ trainModel, evalModel, state, seed: 1 });
  const optimizer = await Optimizer.create(module, { optimizerModel });
  const scheduler = await LinearLRScheduler.create(optimizer, WARMUP, steps, RATE);
  return { state, module, optimizer, scheduler };
}

const scoresOf = (module) => async (feeds) => (await module.evalStep(feeds)).outputs.output.data;

const PARTS = {
  async train(mnist, work) {
    const { generateArtifacts } = await import("ontrain");
    const artifacts = await generateArtifacts(await read("demo/lenet.onnx"), {
      requiresGrad: ["*"],
      loss: "CrossEntropyLoss",
      additionalOutputNames: ["output"],
    });
    for (const name of ["trainingModel", "evalModel", "optimizerModel"]) await writeFile(join(work, name), artifacts[name]);

    const [trainSet, testSet] = [await digits(mnist, "train"), await digits(mnist, "t10k")];
    const order = shuffled(trainSet.count);
    const steps = Math.floor(trainSet.count / BATCH);
    const trained = await session(artifacts, artifacts.checkpoint, steps + FURTHER);
    const before = await accuracy(testSet, scoresOf(trained.module));
    const { times } = await train(trained, trainSet, order, steps);
    const after = await accuracy(testSet, scoresOf(trained.module));
    await writeFile(join(work, "checkpoint"), await trained.state.save({ includeOptimizerState: true }));
    const { last } = await train(trained, trainSet, order, FURTHER, steps);
    console.log(`  test accuracy ${before.toFixed(2)} % untrained, ${after.toFixed(2)} % after one epoch`);
    return { accuracy: after, steps, further_loss: last, ms_per_step: median(times) };
  },

  async resume(mnist, work) {
    const file = (name) => readFile(join(work, name));
    const artifacts = {};
    for (const name of ["trainingModel", "evalModel", "optimizerModel"]) artifacts[name] = await file(name);
    const [trainSet, testSet] = [await digits(mnist, "train"), await digits(mnist, "t10k")];
    const { steps, further_loss, accuracy: saved } = JSON.parse(await file("train.json"));
    const trained = await session(artifacts, await file("checkpoint"), steps + FURTHER);
    const reloaded = await accuracy(testSet, scoresOf(trained.module));
    if (reloaded !== saved) throw new Error(`the reloaded model is right in ${reloaded} %, the saved one was in ${saved} %`);
    const { last } = await train(trained, trainSet, shuffled(trainSet.count), FURTHER, steps);
    if (last !== further_loss) throw new Error(`the resumed training came to a loss of ${last}, not ${further_loss}`);
    const final = await accuracy(testSet, scoresOf(trained.module));
    console.log(`  resumed: the same losses; test accuracy ${final.toFixed(2)} %`);
    await writeFile(join(work, "trained.onnx"), await trained.module.exportModelForInferencing(["output"]));
    return { accuracy: final };
  },

  async onnxruntime(mnist, work) {
    const { default: ort } = await import("onnxruntime-node");
    const model = await ort.InferenceSession.create(join(work, "trained.onnx"));
    const found = await accuracy(await digits(mnist, "t10k"), async ({ input: { type, data, dims } }) => {
      const { output } = await model.run({ input: new ort.Tensor(type, data, dims) });
      return output.data;
    });
    console.log(`  onnxruntime-node on the exported model: test accuracy ${found.toFixed(2)} %`);
    return { accuracy: found };
  },
};

const [part, mnist, work] = process.argv.slice(2);
if (!Object.hasOwn(PARTS, part ?? "") || work === undefined) throw new Error("usage: demo.mjs train|resume|onnxruntime MNIST WORK");
await writeFile(join(work, `${part}.json`), JSON.stringify(await PARTS[part](mnist, work)));
