// A bug in the engine: an error that says so, now and from then on, and no hang. A file, so a process, of its own.

import assert from "node:assert/strict";
import { test } from "node:test";

import { CheckpointState, OntrainError, runModel } from "ontrain";
import { call } from "../node_modules/ontrain/dist/engine.js";
import { model } from "./onnx.mjs";

test("other people's exceptions pass through", async () => {
  const theirs = new TypeError("not ours");
  assert.throws(() => call(() => { throw theirs; }), theirs);
  assert.equal(call(() => 1), 1);
});

test("after a panic every call fails with what happened", async () => {
  const state = await CheckpointState.load(await checkpoint());
  // As the engine's panic hook throws it.
  const panic = Object.assign(new Error("panicked at src/x.rs:1:2: boom"), { panic: true });
  const said = (error) => !(error instanceof OntrainError) && /internal error.*boom/.test(error.message) && error.cause === panic;
  assert.throws(() => call(() => { throw panic; }), said);
  await assert.rejects(state.save(), said);
  await assert.rejects(runModel(new Uint8Array(1), {}), said);
  await state.release();
});

async function checkpoint() {
  const { generateArtifacts } = await import("ontrain");
  const bytes = model({
    inputs: [["x", [1]]],
    outputs: [["y", [1]]],
    weights: [["w", [1], [2]]],
    nodes: [["scale", "Mul", ["x", "w"], ["y"]]],
  });
  return (await generateArtifacts(bytes, { requiresGrad: ["w"], loss: "MSELoss" })).checkpoint;
}
