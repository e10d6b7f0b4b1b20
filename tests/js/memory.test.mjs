// Released memory is used again.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as ontrain from "ontrain";
import load from "../node_modules/ontrain/dist/ontrain.js";
import { read } from "./fixtures.mjs";
import { artifactsOf, golden, session, train } from "./scenario.mjs";

test("making, training and releasing again and again does not grow the engine's memory", async () => {
  const data = await golden(read, "lenet_ce");
  const artifacts = await artifactsOf(ontrain, data, data.trace.runs.adamw, "ontrain");
  const once = async () => {
    const trained = await session(ontrain, artifacts);
    await train(trained, data, 2);
    await trained.module.evalStep(data.feeds(0));
    const exported = await trained.module.exportModelForInferencing(["output"]);
    await ontrain.runModel(exported, [data.feeds(0)[0]]);
    await trained.state.save({ includeOptimizerState: true });
    await trained.release();
  };
  for (let i = 0; i < 5; i++) await once();
  const { memory } = await load(); // what is loaded already
  const before = memory.buffer.byteLength;
  for (let i = 0; i < 30; i++) await once();
  const grown = memory.buffer.byteLength - before;
  // One round holds ten times as much; a little is left to how the pieces fall.
  assert.ok(grown <= 2 ** 19, `30 rounds left ${grown} bytes behind`);
});

test("steps do not grow it either", async () => {
  const data = await golden(read, "reg_mse");
  const artifacts = await artifactsOf(ontrain, data, data.trace.runs.adamw, "ontrain");
  const trained = await session(ontrain, artifacts);
  await train(trained, data, 10);
  const { memory } = await load();
  const before = memory.buffer.byteLength;
  await train(trained, data, 1000);
  assert.equal(memory.buffer.byteLength, before);
});
