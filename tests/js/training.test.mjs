// The packed package trains: golden traces of ONNX Runtime, checkpoints, export.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import * as ontrain from "ontrain";
import { read } from "./fixtures.mjs";
import { artifactsOf, golden, replay, resumeAndExport, session, train } from "./scenario.mjs";

for (const name of ["reg_mse", "lenet_ce"]) {
  const data = await golden(read, name);
  for (const run of ["adamw", "sgd"]) {
    for (const source of ["ort", "ontrain"]) {
      test(`${name} ${run}, on ${source}'s artifacts, walks ONNX Runtime's path`, () => replay(ontrain, data, run, source));
    }
  }
  test(`${name} resumes bit by bit and exports what it has learned`, () => resumeAndExport(ontrain, data));
}

const data = await golden(read, "reg_mse");
const run = data.trace.runs.adamw;
const mine = await artifactsOf(ontrain, data, run, "ontrain");

test("a checkpoint resumes in another process, bit by bit", async () => {
  const folder = await mkdtemp(join(tmpdir(), "ontrain-"));
  try {
    const first = await session(ontrain, mine);
    first.optimizer.setLearningRate(run.lr);
    await train(first, data, 10);
    await writeFile(join(folder, "checkpoint"), await first.state.save({ includeOptimizerState: true }));
    const onward = await train(first, data, 10, 10);

    const script = fileURLToPath(new URL("resume.mjs", import.meta.url));
    const { stdout } = await promisify(execFile)(process.execPath, [script, join(folder, "checkpoint"), "10", "10"]);
    assert.deepEqual(JSON.parse(stdout), onward);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("a checkpoint that ONNX Runtime saved while training is read: memory and properties", async () => {
  const checkpoint = await read("golden/reg_mse/checkpoint_after_adamw");
  const { state, module, optimizer } = await session(ontrain, { ...mine, checkpoint });
  assert.equal(optimizer.stepCount, run.steps);
  assert.deepEqual(state.properties.names, ["best", "epoch", "note"]);
  assert.equal(state.properties.get("epoch"), 3);
  assert.equal(state.properties.get("best"), 0.125);
  assert.equal(state.properties.get("note"), "hello");
  const { loss } = await module.evalStep(data.feeds(0));
  assert.ok(Math.abs(loss - run.eval_loss_after) < 1e-6, `${loss} is not ${run.eval_loss_after}`);
});

test("generated files carry ONNX Runtime's names and the prefix", async () => {
  const options = { requiresGrad: ["fc*"], loss: "MSELoss", prefix: "my_", nominalCheckpoint: true };
  const { files, ...artifacts } = await ontrain.generateArtifacts(await data.file("model.onnx"), options);
  assert.deepEqual(Object.keys(files).sort(), [
    "my_checkpoint", "my_eval_model.onnx", "my_nominal_checkpoint", "my_optimizer_model.onnx", "my_training_model.onnx",
  ]);
  assert.equal(files.my_checkpoint, artifacts.checkpoint);
  const none = await ontrain.generateArtifacts(await data.file("model.onnx"), { ...options, optimizer: null, nominalCheckpoint: false });
  assert.equal("optimizerModel" in none || "nominalCheckpoint" in none, false);
});

test("a module tells its names, and takes inputs by name in any order", async () => {
  const { module } = await session(ontrain, mine);
  assert.deepEqual(module.inputNames(), ["input", "target"]);
  assert.equal(module.outputNames().length, 2);
  assert.equal(module.outputNames(false)[1], "output");
  const [input, target] = data.feeds(0);
  const byOrder = await module.evalStep([input, target]);
  const byName = await module.evalStep({ target, input });
  assert.equal(byName.loss, byOrder.loss);
  assert.deepEqual(Object.keys(byName.outputs), module.outputNames(false));
  assert.equal(byName.outputs[module.outputNames(false)[0]].data[0], byName.loss);
  assert.deepEqual(byName.outputs.output.dims, [16, 1]);
  assert.match(await module.describePlan(data.feeds(0)), /FLOP/i);
});

test("modes, accumulation and gradients", async () => {
  const { module } = await session(ontrain, mine);
  assert.equal(module.isTraining, true);
  const { loss } = await module.step(data.feeds(0));
  const once = await module.getGradient("fc1.weight");
  const digest = run.grad_digest_step0["fc1.weight"];
  const near = (got, want) => assert.ok(Math.abs(got - want) < 1e-6, `${got} is not ${want}`);
  digest.head.forEach((want, i) => near(once.data[i], want));
  await module.trainStep(data.feeds(0)); // adds
  const twice = await module.getGradient("fc1.weight");
  twice.data.forEach((x, i) => near(x, 2 * once.data[i]));
  await module.lazyResetGrad();
  await module.trainStep(data.feeds(0)); // overwrites
  assert.deepEqual((await module.getGradient("fc1.weight")).data, once.data);
  module.eval();
  assert.equal(module.isTraining, false);
  near((await module.step(data.feeds(0))).loss, loss);
  assert.deepEqual((await module.getGradient("fc1.weight")).data, once.data);
  module.train();
  assert.equal(module.isTraining, true);
});

test("parameters, one by one and as one vector", async () => {
  const { module, state } = await session(ontrain, mine);
  const size = await module.getParametersSize();
  const vector = await module.getContiguousParameters();
  assert.deepEqual(vector.dims, [size]);
  assert.ok(Math.abs((await module.evalStep(data.feeds(0))).loss - run.eval_loss_before) < 1e-6);

  await module.loadParametersBuffer(new Float32Array(size));
  const bias = await module.getParameter("fc3.bias");
  assert.deepEqual([...bias.data], [0]);
  await module.setParameter("fc3.bias", { type: "float32", data: [0.5], dims: [1] });
  assert.equal((await state.parameters.get("fc3.bias")).data[0], 0.5);
  await state.parameters.set("fc3.bias", ontrain.Tensor.float32([0.25], [1]));
  assert.equal((await module.getParameter("fc3.bias")).data[0], 0.25);

  const bytes = new Uint8Array(vector.data.buffer);
  const odd = new Uint8Array(bytes.length + 1).subarray(1); // where no float may begin
  odd.set(bytes);
  await module.loadParametersBuffer(odd);
  assert.deepEqual((await module.getContiguousParameters()).data, vector.data);
});

test("a nominal checkpoint trains once it is filled", async () => {
  const model = await data.file("model.onnx");
  const options = { requiresGrad: ["fc*"], loss: "MSELoss", nominalCheckpoint: true };
  const { nominalCheckpoint } = await ontrain.generateArtifacts(model, options);
  const full = await session(ontrain, mine);
  const { state, module } = await session(ontrain, { ...mine, checkpoint: nominalCheckpoint });
  assert.equal(state.isNominal, true);
  await assert.rejects(module.trainStep(data.feeds(0)), ontrain.StateError);
  await assert.rejects(state.parameters.get("fc1.weight"), ontrain.StateError);
  for (const name of state.parameters.names) await module.setParameter(name, await full.module.getParameter(name));
  assert.equal(state.isNominal, false);
  assert.equal((await module.trainStep(data.feeds(0))).loss, (await full.module.trainStep(data.feeds(0))).loss);
});

test("the scheduler warms up and decays", async () => {
  const trained = await session(ontrain, mine);
  const scheduler = await ontrain.LinearLRScheduler.create(trained.optimizer, 2, 6, 0.5);
  const rates = [];
  for (let i = 0; i < 7; i++) {
    rates.push(trained.optimizer.getLearningRate());
    await train(trained, data, 1, i);
    await scheduler.step();
  }
  assert.deepEqual(rates, [0, 0.25, 0.5, 0.375, 0.25, 0.125, 0]);
});

test("properties keep their kinds", async () => {
  const { state } = await session(ontrain, mine);
  state.properties.set("epoch", 7);
  state.properties.set("big", 2n ** 60n);
  state.properties.set("score", 0.5);
  state.properties.setFloat("whole", 2);
  state.properties.set("note", "grüße");
  const again = await ontrain.CheckpointState.load(await state.save());
  assert.deepEqual(again.properties.names, ["big", "epoch", "note", "score", "whole"]);
  const values = again.properties.names.map((name) => again.properties.get(name));
  assert.deepEqual(values, [2n ** 60n, 7, "grüße", 0.5, 2]);
  assert.equal(again.properties.get("nothing"), undefined);
  assert.throws(() => state.properties.set("huge", 1e300), ontrain.InputError);
  assert.throws(() => state.properties.set("huge", 2n ** 63n), ontrain.InputError);
});

test("released workers leave their values in the state", async () => {
  const { state, module, optimizer } = await session(ontrain, mine);
  await train({ module, optimizer }, data, 3);
  const trained = await module.getParameter("fc1.weight");
  await optimizer.release();
  await module.release();
  assert.deepEqual(await state.parameters.get("fc1.weight"), trained);
  const next = await ontrain.Module.create({ trainModel: mine.trainingModel, state });
  const again = await ontrain.Optimizer.create(next, { optimizerModel: mine.optimizerModel });
  assert.equal(again.stepCount, 3);
});

test("the same seed draws the same numbers, and a random one is there by default", async () => {
  const one = await session(ontrain, mine, { seed: 5 });
  assert.equal(one.module.seed, 5n);
  const other = await session(ontrain, mine, { seed: undefined });
  assert.equal(typeof other.module.seed, "bigint");
  assert.notEqual(other.module.seed, (await session(ontrain, mine, { seed: undefined })).module.seed);
});
