// A bug in the engine: an error that says so, now and from then on, and no hang. A file, so a process, of its own.

import assert from "node:assert/strict";
import { test } from "node:test";

import { CheckpointState, OntrainError, runModel, StateError } from "ontrain";
import { call, Queue, settle } from "../node_modules/ontrain/dist/engine.js";
import { RawTask } from "../node_modules/ontrain/dist/ontrain.js";
import { model } from "./onnx.mjs";

test("other people's exceptions pass through", async () => {
  const theirs = new TypeError("not ours");
  assert.throws(() => call(() => { throw theirs; }), theirs);
  assert.equal(call(() => 1), 1);
});

/** Work as the engine gives it back while the device is waited for. */
const task = (resume) => Object.assign(Object.create(RawTask.prototype), { woken: async () => {}, resume });

test("work that waits for the device goes on until it is done, one call after the other", async () => {
  assert.equal(await settle(() => 1), 1);
  assert.equal(await settle(() => task(() => task(() => 2))), 2);
  const refused = Object.assign(new Error("no"), { kind: "State" });
  await assert.rejects(settle(() => task(() => { throw refused; })), StateError);
  const queue = new Queue();
  const order = [];
  const one = queue.add(() => settle(() => task(() => order.push("one"))));
  const two = assert.rejects(queue.add(() => settle(() => { throw refused; })), StateError);
  const three = queue.add(() => order.push("three"));
  await Promise.all([one, two, three]);
  assert.deepEqual(order, ["one", "three"]);
});

test("after a panic every call fails with what happened", async () => {
  const state = await CheckpointState.load(await checkpoint());
  // As the engine's panic hook throws it.
  const panic = Object.assign(new Error("panicked at src/x.rs:1:2: boom"), { panic: true });
  const said = (error) => !(error instanceof OntrainError) && /internal error.*boom/.test(error.message) && error.cause === panic;
  // It comes while the device is waited for, and what waited with it fails as well.
  let wake;
  const other = task(() => "never");
  other.woken = () => new Promise((resolve) => (wake = resolve));
  const waiting = assert.rejects(settle(() => other), said);
  await assert.rejects(settle(() => task(() => { throw panic; })), said);
  wake();
  await waiting;
  assert.throws(() => call(() => 1), said);
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
