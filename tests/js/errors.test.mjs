// Bad input: each a typed error that names what is wrong, never a trap, and the engine goes on.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import * as ontrain from "ontrain";
import { read } from "./fixtures.mjs";
import { external, model } from "./onnx.mjs";
import { artifactsOf, golden, session, train } from "./scenario.mjs";

const { CheckpointState, generateArtifacts, Module, OntrainError, Optimizer, runModel, Tensor } = ontrain;

/** `work` fails with an error of `kind` whose message has all `words`. */
async function fails(work, kind, ...words) {
  const error = await work().then(
    () => assert.fail(`nothing failed; a ${kind} error was expected (${words})`),
    (thrown) => thrown,
  );
  assert.ok(error instanceof OntrainError, `${error.stack}`);
  assert.ok(error instanceof ontrain[`${kind}Error`], `${error.name}: ${error.message}`);
  assert.equal(error.kind, kind);
  assert.equal(error.name, `${kind}Error`);
  for (const word of words) assert.ok(error.message.includes(word), `"${error.message}" does not say "${word}"`);
  return error;
}

const reg = await golden(read, "reg_mse");
const lenet = await golden(read, "lenet_ce");
const regModel = await reg.file("model.onnx");
const mine = await artifactsOf(ontrain, reg, reg.trace.runs.adamw, "ontrain");
const lenetMine = await artifactsOf(ontrain, lenet, lenet.trace.runs.adamw, "ontrain");
const options = { requiresGrad: ["fc*"], loss: "MSELoss" };

// Whatever went wrong, the engine still computes.
after(async () => {
  const losses = await train(await session(ontrain, mine), reg, 1);
  assert.ok(Math.abs(losses[0] - reg.trace.runs.adamw.losses[0]) < 1e-5);
});

/** Numbers in [0, 1) that are the same in each run. */
function randoms(seed) {
  let state = seed;
  return () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
}

/** A file cut at many places, and with bytes changed. */
function* damaged(bytes, count) {
  const random = randoms(7);
  for (let i = 0; i < count; i++) yield bytes.slice(0, Math.floor(random() * bytes.length));
  for (let i = 0; i < count; i++) {
    const changed = bytes.slice();
    for (let k = 0; k < 4; k++) changed[Math.floor(random() * Math.min(2000, bytes.length))] = Math.floor(random() * 256);
    yield changed;
  }
  for (let i = 0; i < count; i++) yield Uint8Array.from({ length: i * 13 }, () => Math.floor(random() * 256));
}

test("truncated, changed and random bytes as a model", async () => {
  let refused = 0;
  for (const bytes of damaged(regModel, 60)) {
    // A changed byte may lie in a weight or a name: then the model is another, sound one.
    await generateArtifacts(bytes, options).catch((error) => {
      assert.ok(error instanceof OntrainError, `${error.stack}`);
      refused++;
    });
  }
  assert.ok(refused > 100, `only ${refused} were refused`);
  await fails(() => generateArtifacts(new Uint8Array(), options), "Load");
  await fails(() => generateArtifacts(regModel.subarray(0, 3000), options), "Load");
  await fails(() => generateArtifacts(new TextEncoder().encode("<!doctype html>"), options), "Load");
});

test("truncated, changed and random bytes as a checkpoint", async () => {
  let refused = 0;
  for (const bytes of damaged(mine.checkpoint, 60)) {
    await CheckpointState.load(bytes).then(
      (state) => state.release(),
      (error) => {
        assert.ok(["Load", "Checkpoint", "Unsupported"].includes(error.kind), `${error.stack}`);
        refused++;
      },
    );
  }
  assert.ok(refused > 100, `only ${refused} were refused`);
  await fails(() => CheckpointState.load(new Uint8Array()), "Load");
  await fails(() => CheckpointState.load(regModel), "Load");
});

test("damaged training models", async () => {
  const state = await CheckpointState.load(mine.checkpoint);
  for (const trainModel of damaged(mine.trainingModel, 40)) {
    await Module.create({ trainModel, state }).then(
      (module) => module.release(),
      (error) => assert.ok(error instanceof OntrainError, `${error.stack}`),
    );
  }
  await fails(() => Module.create({ trainModel: new Uint8Array(3), state }), "Load");
});

test("a parameter that does not exist", () =>
  fails(() => generateArtifacts(regModel, { ...options, requiresGrad: ["fc9.weight"] }), "Graph", "fc9.weight", "fc1.weight"));

test("a parameter in both lists", () =>
  fails(() => generateArtifacts(regModel, { ...options, frozenParams: ["fc1.bias"], requiresGrad: ["fc1.bias"] }), "Graph", "fc1.bias"));

test("a pattern that matches nothing", () =>
  fails(() => generateArtifacts(regModel, { ...options, requiresGrad: ["conv*"] }), "Graph", "conv*"));

test("no trainable parameter", () =>
  fails(() => generateArtifacts(regModel, { ...options, requiresGrad: [] }), "Graph", "no trainable parameter"));

const weights = [["w", [3], [1, 2, 3]], ["unused", [3], [1, 1, 1]]];
const scaled = { inputs: [["x", ["n", 3]]], outputs: [["y", ["n", 3]]], weights };

test("a parameter that the loss does not depend on", async () => {
  const bytes = model({ ...scaled, nodes: [["scale", "Mul", ["x", "w"], ["y"]], ["other", "Neg", ["unused"], ["z"]]] });
  await fails(() => generateArtifacts(bytes, { requiresGrad: ["unused"], loss: "MSELoss" }), "Gradient", "unused");
});

test("a loss that is no scalar, with loss none", async () => {
  const bytes = model({ ...scaled, nodes: [["scale", "Mul", ["x", "w"], ["y"]]] });
  await fails(() => generateArtifacts(bytes, { requiresGrad: ["w"], loss: "none" }), "Gradient", "scalar", "y");
});

test("an operator on the way that has no gradient is named", async () => {
  const bytes = model({
    inputs: [["x", ["n", 3]]],
    outputs: [["y", ["n", 3]]],
    weights: [["w", [1], [1]]],
    nodes: [["ratio", "Squeeze", ["w"], ["r"]], ["drop7", "Dropout", ["x", "r"], ["y"]]],
  });
  await fails(() => generateArtifacts(bytes, { requiresGrad: ["w"], loss: "MSELoss" }), "Gradient", "Dropout", "drop7");
});

test("an operator that ontrain does not have is named", async () => {
  const bytes = model({ ...scaled, nodes: [["det5", "GlobalLpPool", ["x"], ["y"]]] });
  const error = await fails(() => runModel(bytes, { x: Tensor.float32([1, 2, 3], [1, 3]) }), "Unsupported", "GlobalLpPool", "det5");
  assert.match(error.at ?? error.message, /det5/);
});

test("an output or input of the loss that does not exist", async () => {
  await fails(() => generateArtifacts(regModel, { ...options, additionalOutputNames: ["nope"] }), "Graph", "nope");
  await fails(() => generateArtifacts(regModel, { ...options, lossInputNames: ["nope"] }), "Graph", "nope");
});

test("options that do not exist", async () => {
  await fails(() => generateArtifacts(regModel, { requires_grad: ["*"] }), "Input", "requires_grad", "requiresGrad");
  await fails(() => generateArtifacts(regModel, {}), "Input", "requiresGrad");
  await fails(() => generateArtifacts(regModel, { ...options, loss: "MSE" }), "Input", "MSE", "MSELoss");
  await fails(() => generateArtifacts(regModel, { ...options, loss: { type: "MSELoss", reduction: "max" } }), "Input", "max");
  await fails(() => generateArtifacts(regModel, { ...options, loss: { type: "MSELoss", weight: [1] } }), "Input", "weight");
  await fails(() => generateArtifacts(regModel, { ...options, optimizer: "Adam" }), "Input", "Adam", "AdamW");
  await fails(() => generateArtifacts(regModel, { ...options, optimizer: { type: "AdamW", betas: [2, 1] } }), "Graph", "betas");
  await fails(() => generateArtifacts("model.onnx", options), "Input", "model.onnx");
});

test("external data that was not handed in, is too short, or lies elsewhere", async () => {
  const with_ = (file) => model({
    inputs: [["x", [1, 3]]],
    outputs: [["y", [1, 3]]],
    externals: [external("w", [3], file)],
    nodes: [["scale", "Mul", ["x", "w"], ["y"]]],
  });
  const x = Tensor.float32([1, 1, 1], [1, 3]);
  await fails(() => runModel(with_("w.bin"), { x }), "Load", "w.bin");
  await fails(() => runModel(with_("w.bin"), { x }, { externalData: { "w.bin": new Uint8Array(8) } }), "Load", "w.bin");
  await fails(() => runModel(with_("../w.bin"), { x }, { externalData: { "../w.bin": new Uint8Array(12) } }), "Load", "../w.bin");
  const { y } = await runModel(with_("w.bin"), { x }, { externalData: { "w.bin": Float32Array.of(1, 2, 3).buffer } });
  assert.deepEqual([...y.data], [1, 2, 3]);
});

test("wrong inputs of a step: name, number, type, rank, size", async () => {
  const { module } = await session(ontrain, mine);
  const [input, target] = reg.feeds(0);
  const step = (feeds) => () => module.trainStep(feeds);
  await fails(step({ input }), "Input", "target");
  await fails(step({ input, target, labels: target }), "Input", "labels", "target");
  await fails(step([input]), "Input", "1", "target");
  await fails(step(input.data), "Input", "Float32Array");
  await fails(step({ input, target: undefined }), "Input", "target");
  await fails(step({ input: new Tensor("float64", new Float64Array(128), [16, 8]), target }), "Input", "input", "float32", "float64");
  await fails(step({ input: Tensor.float32(input.data, [128]), target }), "Input", "input", "rank");
  await fails(step({ input: Tensor.float32(input.data, [8, 16]), target }), "Input", "input", "8");
  await fails(step({ input, target: Tensor.float32([1, 2], [2, 1]) }), "Input", "target", "16", "2");
  await fails(step({ input: { ...input, dims: [16, 9] }, target }), "Input", "input", "144", "128");
  await train({ module, optimizer: { step() {} } }, reg, 1);
});

test("a label out of range", async () => {
  const { module } = await session(ontrain, lenetMine);
  const [input, labels] = lenet.feeds(0);
  const wrong = { type: "int64", data: labels.data.slice(), dims: labels.dims };
  wrong.data[3] = 10n;
  await fails(() => module.trainStep({ input, labels: wrong }), "Input", "10");
  wrong.data[3] = -1n;
  await fails(() => module.evalStep({ input, labels: wrong }), "Input", "-1");
  const { loss } = await module.trainStep({ input, labels });
  assert.ok(Math.abs(loss - lenet.trace.runs.adamw.losses[0]) < 1e-5);
});

test("the checkpoint of another model, when the module is made", async () => {
  const state = await CheckpointState.load(lenetMine.checkpoint);
  await fails(() => Module.create({ trainModel: mine.trainingModel, state }), "Checkpoint");
  // The state is free after that.
  await Module.create({ trainModel: lenetMine.trainingModel, state });
});

test("an eval step or export without an eval model", async () => {
  const state = await CheckpointState.load(mine.checkpoint);
  const module = await Module.create({ trainModel: mine.trainingModel, state });
  await fails(() => module.evalStep(reg.feeds(0)), "State", "eval model");
  await fails(() => module.exportModelForInferencing(["output"]), "State", "eval model");
  module.eval();
  await fails(() => module.step(reg.feeds(0)), "State", "eval model");
});

test("an optimizer without a model, or of a wrong one", async () => {
  const state = await CheckpointState.load(mine.checkpoint);
  const module = await Module.create({ trainModel: mine.trainingModel, state });
  const { optimizerModel } = await generateArtifacts(regModel, { ...options, optimizer: null });
  await fails(() => Optimizer.create(module, { optimizerModel }), "State", "optimizer model");
  await fails(() => Optimizer.create(module, { optimizerModel: new Uint8Array(5) }), "Load");
  await fails(() => Optimizer.create(module, { optimizerModel: mine.evalModel }), "Graph", "optimizer model");
  const optimizer = await Optimizer.create(module, { optimizerModel: mine.optimizerModel });
  assert.throws(() => optimizer.setLearningRate(NaN), ontrain.InputError);
  assert.throws(() => optimizer.setLearningRate(-1), ontrain.InputError);
});

test("an unknown output of an export, an unknown parameter", async () => {
  const { module, state } = await session(ontrain, mine);
  await fails(() => module.exportModelForInferencing(["nope"]), "Graph", "nope");
  await fails(() => module.getParameter("nope"), "Input", "nope", "fc1.weight");
  await fails(() => module.getGradient("nope"), "Input", "nope");
  await fails(() => state.parameters.set("nope", Tensor.float32([1])), "Input", "nope");
  await fails(() => module.setParameter("fc1.bias", Tensor.float32([1])), "Input", "fc1.bias", "32");
  await fails(() => module.loadParametersBuffer(new Float32Array(3)), "Input", "3");
  await fails(() => module.loadParametersBuffer(new Uint8Array(3)), "Input", "3");
});

test("a loss that is not a number is an error, and leaves the parameters", async () => {
  const { module } = await session(ontrain, mine);
  const [input, target] = reg.feeds(0);
  const before = await module.getContiguousParameters();
  const bad = { input, target: { ...target, data: target.data.map(() => NaN) } };
  await fails(() => module.trainStep(bad), "State", "NaN");
  assert.deepEqual((await module.getContiguousParameters()).data, before.data);
  const { loss } = await module.trainStep({ input, target });
  assert.ok(Math.abs(loss - reg.trace.runs.adamw.losses[0]) < 1e-5);
  const lax = await session(ontrain, mine, { nonFinite: "return" });
  assert.ok(Number.isNaN((await lax.module.trainStep(bad)).loss));
});

test("released objects", async () => {
  const { state, module, optimizer } = await session(ontrain, mine);
  const scheduler = await ontrain.LinearLRScheduler.create(optimizer, 1, 2, 0.1);
  await scheduler.release();
  await fails(() => scheduler.step(), "State", "LinearLRScheduler", "released");
  await module.release();
  await module.release();
  await fails(() => module.trainStep(reg.feeds(0)), "State", "Module", "released");
  await fails(() => optimizer.step(), "State", "Module", "released");
  assert.throws(() => module.inputNames(), ontrain.StateError);
  await optimizer.release();
  await fails(() => optimizer.step(), "State", "Optimizer", "released");
  assert.throws(() => optimizer.getLearningRate(), ontrain.StateError);
  await state.save();
  await state.release();
  await fails(() => state.save(), "State", "CheckpointState", "released");
  await fails(() => Module.create({ trainModel: mine.trainingModel, state }), "State", "released");
  assert.throws(() => state.properties.get("epoch"), ontrain.StateError);
  if (Symbol.dispose) {
    const other = await CheckpointState.load(mine.checkpoint);
    other[Symbol.dispose]();
    assert.throws(() => other.parameters.names, ontrain.StateError);
  }
});

test("one module and one optimizer at a time work on a state", async () => {
  const { state, module } = await session(ontrain, mine);
  await fails(() => Module.create({ trainModel: mine.trainingModel, state }), "State", "Module");
  await fails(() => Optimizer.create(module, { optimizerModel: mine.optimizerModel }), "State", "Optimizer");
});

test("arguments of a wrong type", async () => {
  await fails(() => Module.create({ trainModel: mine.trainingModel, state: {} }), "Input", "CheckpointState");
  await fails(() => Module.create({ trainModel: "x", state: undefined }), "Input");
  await fails(() => Module.create(), "Input");
  await fails(() => Optimizer.create({}, {}), "Input", "Module");
  await fails(() => CheckpointState.load(null), "Input", "null");
  await fails(() => runModel(regModel, {}), "Input", "input");
  await fails(() => runModel(regModel, [reg.feeds(0)[0]], { outputs: ["nope"] }), "Input", "nope", "output");
});
