// What must be so on each device, and from one to the other. A check that fails throws; what the functions give is what two
// devices must agree on.

import * as ontrain from "ontrain";
// The engine's own view of its device: counters, and a way to lose it.
import { rawDevice } from "../node_modules/ontrain/dist/device.js";
import { artifactsOf, check, golden, session, train } from "./scenario.mjs";

const { CheckpointState, generateArtifacts, init, Module, Optimizer, Tensor } = ontrain;

/** `work` fails with an error of `kind` whose message has all `words`; gives the message. */
export async function fails(work, kind, ...words) {
  const error = await (async () => work())().then(
    () => check(false, `nothing failed; a ${kind} error was expected (${words})`),
    (thrown) => thrown,
  );
  check(error instanceof ontrain[`${kind}Error`] && error.kind === kind, `not a ${kind} error: ${error.stack ?? error}`);
  for (const word of words) check(error.message.includes(word), `"${error.message}" does not say "${word}"`);
  return error.message;
}

const same = (got, want, what) => check(String(got) === String(want), `${what}: ${got}, not ${want}`);

const near = (got, want, tolerance, what) => {
  const worst = want.reduce((most, x, i) => Math.max(most, Math.abs(x - got[i])), 0);
  check(got.length === want.length && worst <= tolerance, `${what}: ${got}, not ${want} within ${tolerance}`);
  return worst;
};

/** A golden case with ontrain's artifacts, and what makes a session of it on a device. */
async function prepared(read, name, device) {
  const data = await golden(read, name);
  const artifacts = await artifactsOf(ontrain, data, data.trace.runs.adamw, "ontrain");
  const open = ({ checkpoint = artifacts.checkpoint, ...options } = {}) =>
    session(ontrain, { ...artifacts, checkpoint }, { device, ...options });
  return { data, artifacts, open };
}

/** Calls that nobody awaits are made in the order in which they were asked for, on the inputs of that moment. */
export async function queue(read, device) {
  const { data, open } = await prepared(read, "reg_mse", device);
  const first = await open();
  const wanted = await train(first, data, 3);
  const parameters = (await first.module.getContiguousParameters()).data;
  await first.release();

  const { state, module, optimizer } = await open();
  const asked = [];
  const [input, target] = data.feeds(0).map((tensor) => ({ ...tensor, data: tensor.data.slice() }));
  asked.push(module.trainStep({ input, target }));
  input.data.fill(NaN);
  target.data.fill(NaN);
  asked.push(optimizer.step(), module.lazyResetGrad());
  asked.push(module.trainStep(data.feeds(1)), optimizer.step());
  const bad = { ...input, dims: [16, 8], data: input.data };
  const refused = fails(() => module.trainStep({ input: bad, target: { ...target, dims: [4, 4] } }), "Input", "target");
  asked.push(module.lazyResetGrad(), module.trainStep(data.feeds(2)), optimizer.step());
  const read_ = module.getContiguousParameters();
  const saved = state.save({ includeOptimizerState: true });
  const released = module.release();
  await fails(() => module.trainStep(data.feeds(0)), "State", "released");
  const losses = (await Promise.all(asked)).flatMap((result) => result?.loss ?? []);
  same(losses, wanted, "losses");
  same((await read_).data, parameters, "parameters");
  await refused;
  await released;
  same(optimizer.stepCount, 3, "steps taken");
  const again = await open({ checkpoint: await saved });
  same((await again.module.getContiguousParameters()).data, parameters, "saved parameters");
  same(again.optimizer.stepCount, 3, "saved steps");
  await again.release();
  await state.release();
}

/** Rates that are set, and schedules, between steps that nobody awaits. */
export async function rates(read, device) {
  const { data, open } = await prepared(read, "reg_mse", device);
  const run = async (wait) => {
    const { module, optimizer, release } = await open();
    const scheduler = await ontrain.LinearLRScheduler.create(optimizer, 1, 4, 0.1);
    const calls = [
      () => module.trainStep(data.feeds(0)), () => optimizer.step(), () => scheduler.step(),
      () => module.trainStep(data.feeds(1)), () => optimizer.step(),
      () => optimizer.setLearningRate(0.25), () => optimizer.step(), () => scheduler.step(), () => optimizer.step(),
    ];
    if (wait) for (const call of calls) await call();
    else await Promise.all(calls.map((call) => call()));
    const { data: values } = await module.getContiguousParameters();
    const result = [optimizer.getLearningRate(), optimizer.stepCount, ...values];
    await release();
    return result;
  };
  const [waited, queued] = [await run(true), await run(false)];
  same(queued, waited, "rate, steps and parameters");
  near(queued.slice(0, 2), [0.1 * (4 - 3) / (4 - 1), 4], 1e-6, "the rate after four steps");
}

/** Steps whose loss is read now and then. */
export async function withoutWaiting(read, device) {
  const { data, open } = await prepared(read, "reg_mse", device);
  const first = await open();
  const wanted = await train(first, data, 12);
  await first.release();

  const { module, optimizer, release } = await open();
  await fails(() => module.readLoss(), "State", "no loss");
  await module.describePlan(data.feeds(0));
  await fails(() => module.readLoss(), "State", "no loss");
  for (let i = 0; i < 12; i++) {
    await module.startTrainStep(data.feeds(i));
    await optimizer.step();
    await module.lazyResetGrad();
    if (i === 5) await module.describePlan(data.feeds(0).map((t) => new Tensor(t.type, t.data.slice(0, t.data.length / 2), [t.dims[0] / 2, ...t.dims.slice(1)])));
    if (i % 3 !== 2) continue;
    const { loss, outputs } = await module.readLoss();
    same(loss, wanted[i], `loss ${i}`);
    same(outputs[module.outputNames()[0]].data[0], loss, "the loss as an output");
  }
  await release();
}

/** Labels out of range and losses that are not finite; gives the messages. */
export async function badSteps(read, device) {
  const { data, open } = await prepared(read, "lenet_ce", device);
  const { module, optimizer, release } = await open();
  const [input, labels] = data.feeds(0);
  const wrong = { ...labels, data: labels.data.slice() };
  const before = (await module.getContiguousParameters()).data;
  const said = [];
  for (const label of [10n, -1n]) {
    wrong.data[3] = label;
    said.push(await fails(() => module.trainStep({ input, labels: wrong }), "Input", String(label)));
    said.push(await fails(() => module.evalStep({ input, labels: wrong }), "Input", String(label)));
  }
  const nan = { ...input, data: input.data.map(() => NaN) };
  said.push(await fails(() => module.trainStep({ input: nan, labels }), "State", "NaN"));
  // A step that is not waited for: the optimizer's step after it changes nothing, and the error comes in the end.
  const later = async () => {
    await module.startTrainStep({ input: nan, labels });
    await optimizer.step();
    await module.readLoss();
  };
  said.push(await fails(later, "State", "NaN"));
  same((await module.getContiguousParameters()).data, before, "parameters after failed steps");
  const { loss } = await module.trainStep({ input, labels });
  near([loss], [data.trace.runs.adamw.losses[0]], 1e-5, "the loss after failed steps");
  await release();

  const lax = await open({ nonFinite: "return" });
  check(Number.isNaN((await lax.module.trainStep({ input: nan, labels })).loss), "the loss is returned as it is");
  await lax.release();
  return said;
}

/** Two modules that are trained at the same time: each as if it were alone, also when the other's steps fail. */
export async function together(read, device) {
  const { data, open } = await prepared(read, "lenet_ce", device);
  const alone = await open();
  const wanted = await train(alone, data, 3);
  await alone.release();

  const [one, other] = [await open(), await open()];
  const [input, labels] = data.feeds(0);
  const wrong = { ...labels, data: labels.data.map(() => 10n) };
  const failing = async () => {
    for (let i = 0; i < 3; i++) {
      await other.module.startTrainStep({ input, labels: wrong }).then(() => other.module.readLoss()).then(
        () => check(false, "the label is out of range"),
        (error) => check(error.kind === "Input", `not the label: ${error.stack}`),
      );
    }
  };
  const [losses] = await Promise.all([train(one, data, 3), failing()]);
  same(losses, wanted, "losses beside a module that fails");
  const both = await Promise.all([train(one, data, 3), train(other, data, 3)]);
  same(both[1], wanted, "losses of the module that has failed");
  check(both[0][2] < wanted[2], `the first module has gone on: ${both[0]}`);
  await one.release();
  await other.release();
}

/** Each of the above. */
export const ON_EACH = { queue, rates, withoutWaiting, badSteps, together };

/** The first digits of MNIST's test set: 28×28 in [0, 1], and which of ten each is. */
async function digits(read, count) {
  const [images, answers] = await Promise.all(["images-idx3", "labels-idx1"].map((name) => read(`mnist/t10k-${name}-ubyte`)));
  const pixels = Float32Array.from(images.subarray(16, 16 + count * 784), (value) => value / 255);
  const labels = BigInt64Array.from(answers.subarray(8, 8 + count), (value) => BigInt(value));
  return { pixels, labels };
}

/** The network of `cargo xtask demo`, and batches of MNIST. */
async function demo(read, size) {
  const options = { requiresGrad: ["*"], loss: "CrossEntropyLoss", additionalOutputNames: ["output"] };
  const artifacts = await generateArtifacts(await read("demo/lenet.onnx"), options);
  const { pixels, labels } = await digits(read, 16 * size);
  const feeds = (i) => {
    const from = (i % 16) * size;
    return {
      input: { type: "float32", data: pixels.subarray(from * 784, (from + size) * 784), dims: [size, 1, 28, 28] },
      labels: { type: "int64", data: labels.subarray(from, from + size), dims: [size] },
    };
  };
  return { artifacts, data: { feeds } };
}

/** How long the demo's network takes from nothing to its first loss, and what had to be made for it. For a page of its own. */
export async function coldStart(read) {
  const { artifacts, data } = await demo(read, 32);
  const start = performance.now();
  await init({ device: "webgpu" });
  const trained = await session(ontrain, artifacts);
  const made = performance.now();
  const { loss } = await trained.module.trainStep(data.feeds(0));
  await trained.optimizer.step();
  await trained.module.getParameter(trained.state.parameters.names[0]);
  const end = performance.now();
  check(Number.isFinite(loss), `the loss is ${loss}`);
  const { buffers, bindGroups, pipelines } = (await rawDevice("webgpu")).counters;
  check(pipelines > 0 && pipelines < 100, `${pipelines} pipelines for one network`);
  await trained.release();
  await init({ device: "wasm" });
  return { "ms to the modules": made - start, "ms to the first step": end - start, buffers, bindGroups, pipelines };
}

/** A step of the steady state makes no GPU object, submits once, and maps nothing unless its loss is read. */
export async function steadyState(read) {
  const { artifacts, data } = await demo(read, 8);
  const { module, optimizer, release } = await session(ontrain, artifacts, { device: "webgpu" });
  const device = await rawDevice("webgpu");
  const step = async (i) => {
    await module.startTrainStep(data.feeds(i));
    await optimizer.step();
    await module.lazyResetGrad();
  };
  await step(0);
  await module.readLoss();
  await step(1);
  const before = device.counters;
  for (let i = 2; i < 7; i++) await step(i);
  const between = device.counters;
  await module.readLoss();
  const after = device.counters;
  const { dispatches, ...made } = between;
  check(dispatches > before.dispatches + 50, `five steps were ${dispatches - before.dispatches} kernels`);
  same(JSON.stringify(made), JSON.stringify({ ...before, dispatches: undefined, submissions: before.submissions + 5 }), "objects made by five steps");
  same(JSON.stringify(after), JSON.stringify({ ...between, submissions: after.submissions, maps: between.maps + 1 }), "objects made by reading a loss");
  await release();
  return { "GPU objects": before, "kernels in a step": (dispatches - before.dispatches) / 5 };
}

/** The demo's network walks the same path on the GPU as on the processor, also when it changes from one to the other. */
export async function samePath(read, steps) {
  const { artifacts, data } = await demo(read, 32);
  const rate = (trained) => trained.optimizer.setLearningRate(1e-3);
  const half = steps / 2;
  const cpu = await session(ontrain, artifacts, { device: "wasm" });
  rate(cpu);
  const wanted = await train(cpu, data, steps);
  await cpu.release();
  check(wanted[steps - 1] < wanted[0] / 2, `nothing was learned: ${wanted}`);

  const gpu = await session(ontrain, artifacts, { device: "webgpu" });
  same(gpu.module.device, "webgpu", "the device");
  rate(gpu);
  const found = await train(gpu, data, half);
  const checkpoint = await gpu.state.save({ includeOptimizerState: true });
  found.push(...(await train(gpu, data, steps - half, half)));
  await gpu.release();
  const apart = near(found, wanted, 1e-3, "losses on webgpu");

  const moved = await session(ontrain, { ...artifacts, checkpoint }, { device: "wasm" });
  same(moved.optimizer.stepCount, half, "steps of the checkpoint");
  rate(moved);
  near(await train(moved, data, steps - half, half), wanted.slice(half), 1e-3, "losses on wasm from webgpu's checkpoint");
  await moved.release();
  return { steps, first: wanted[0], last: wanted[steps - 1], apart };
}

/** A device that is lost in mid-step: nothing saved is lost, and training goes on elsewhere or on a new one. */
export async function lostDevice(read) {
  const { data, artifacts, open } = await prepared(read, "reg_mse", "webgpu");
  const { state, module, optimizer } = await open();
  await train({ module, optimizer }, data, 3);
  const checkpoint = await state.save({ includeOptimizerState: true });
  const saved = (await module.getContiguousParameters()).data;
  const [onward] = await train({ module, optimizer }, data, 1, 3);

  const step = module.trainStep(data.feeds(4));
  (await rawDevice("webgpu")).destroy();
  await fails(() => step, "Device", "lost");
  const call = { trainModel: artifacts.trainingModel, evalModel: artifacts.evalModel, state, seed: 1 };
  for (const later of [
    () => module.trainStep(data.feeds(4)), () => module.startTrainStep(data.feeds(4)), () => module.evalStep(data.feeds(4)),
    () => module.getParameter("fc1.weight"), () => state.save(), () => optimizer.step(), () => state.parameters.get("fc1.weight"),
  ]) {
    await fails(later, "Device", "lost", "intact");
  }
  await fails(() => module.release(), "Device", "lost");

  // In memory the state is what was saved last, and free; and so are the bytes.
  for (const device of ["wasm", "webgpu"]) {
    for (const from of [state, await CheckpointState.load(checkpoint)]) {
      const again = await Module.create({ ...call, state: from, device });
      same(again.device, device, "the device");
      same((await again.getContiguousParameters()).data, saved, "parameters after the loss");
      const optimizer = await Optimizer.create(again, { optimizerModel: artifacts.optimizerModel });
      same(optimizer.stepCount, 3, "steps after the loss");
      near([(await again.trainStep(data.feeds(3))).loss], [onward], 1e-5, "the loss after the loss");
      await optimizer.release();
      await again.release();
    }
  }
  same((await init({ device: "webgpu" })).name, "webgpu", "the new device");
  await init({ device: "wasm" });
}

/** What `init` gives and refuses in a browser that has WebGPU. */
export async function opening() {
  const auto = await init({ device: "auto" });
  same(auto.name, "webgpu", `the device chosen by auto (${auto.fallback})`);
  check(ontrain.device() === auto && auto.adapter?.length > 0, `the default device is ${JSON.stringify(ontrain.device())}`);
  same((await init()).name, "webgpu", "the device that stays");

  const { requestAdapter } = GPU.prototype;
  const { getMappedRange } = GPUBuffer.prototype;
  const lost = async () => (await rawDevice("webgpu")).destroy();
  const refused = async (...words) => {
    await fails(() => init({ device: "webgpu" }), "Device", ...words);
    const { name, fallback } = await init({ device: "auto" });
    same(name, "wasm", "the device chosen by auto");
    for (const word of words) check(fallback.includes(word), `the reason is "${fallback}", not "${word}"`);
    same(ontrain.device().fallback, fallback, "the default device");
    return fallback;
  };
  const said = [auto.adapter];
  try {
    await lost();
    GPU.prototype.requestAdapter = async () => null;
    said.push(await refused("no WebGPU adapter"));
    GPU.prototype.requestAdapter = async function (...options) {
      const adapter = await requestAdapter.apply(this, options);
      const small = (limits, name) => (name === "maxComputeInvocationsPerWorkgroup" ? 128 : limits[name]);
      return new Proxy(adapter, { get: (target, name) => (name === "limits" ? new Proxy(target.limits, { get: small }) : target[name]) });
    };
    said.push(await refused("too small", "128", "256"));
    GPU.prototype.requestAdapter = requestAdapter;

    // A GPU that computes wrongly: all that is read back is zero.
    GPUBuffer.prototype.getMappedRange = function (...range) {
      return new ArrayBuffer(getMappedRange.apply(this, range).byteLength);
    };
    const { name, fallback } = await init({ device: "auto" });
    same(name, "wasm", "the device chosen by auto");
    check(/self-check: the loss is 0, not/.test(fallback), `the reason is "${fallback}"`);
    said.push(fallback);
  } finally {
    GPU.prototype.requestAdapter = requestAdapter;
    GPUBuffer.prototype.getMappedRange = getMappedRange;
  }
  same((await init({ device: "auto" })).name, "webgpu", "the device chosen by auto in the end");
  await init({ device: "wasm" });
  return said;
}
