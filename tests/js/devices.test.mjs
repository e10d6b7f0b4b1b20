// Devices in Node, where the program has provided no GPU; and what holds on each device, on the processor.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as ontrain from "ontrain";
import { fails, ON_EACH } from "./devices.mjs";
import { read } from "./fixtures.mjs";

const { CheckpointState, device, init, Module, runModel } = ontrain;

test("without a word from the program, wasm is the device", async () => {
  assert.deepEqual(device(), { name: "wasm" });
  assert.deepEqual(await init(), { name: "wasm" });
  assert.deepEqual(await init({ device: "wasm" }), { name: "wasm" });
});

test("webgpu where there is none is a DeviceError that says so, and changes nothing", async () => {
  const artifacts = await ontrain.generateArtifacts(await read("golden/reg_mse/model.onnx"), { requiresGrad: ["*"], loss: "MSELoss" });
  const state = await CheckpointState.load(artifacts.checkpoint);
  const words = ["navigator.gpu", "npm package webgpu"];
  await fails(() => init({ device: "webgpu" }), "Device", ...words);
  await fails(() => Module.create({ trainModel: artifacts.trainingModel, state, device: "webgpu" }), "Device", ...words);
  await fails(() => runModel(artifacts.evalModel, {}, { device: "webgpu" }), "Device", ...words);
  assert.deepEqual(device(), { name: "wasm" });
  const module = await Module.create({ trainModel: artifacts.trainingModel, state });
  assert.equal(module.device, "wasm");
  await module.release();
});

test("auto falls back to wasm, with the reason", async () => {
  const chosen = await init({ device: "auto" });
  assert.equal(chosen.name, "wasm");
  assert.match(chosen.fallback, /navigator\.gpu is undefined/);
  assert.equal(device(), chosen);
  assert.equal(await init(), chosen);
  assert.deepEqual(await init({ device: "wasm" }), { name: "wasm" });
});

test("a platform that has WebGPU but no adapter", async () => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  Object.defineProperty(globalThis, "navigator", { configurable: true, value: { gpu: { requestAdapter: async () => null } } });
  try {
    await fails(() => init({ device: "webgpu" }), "Device", "no WebGPU adapter");
    assert.match((await init({ device: "auto" })).fallback, /no WebGPU adapter/);
    assert.equal("Window" in globalThis, false);
  } finally {
    delete globalThis.navigator;
    if (before) Object.defineProperty(globalThis, "navigator", before);
    await init({ device: "wasm" });
  }
});

test("devices and options that do not exist", async () => {
  await fails(() => init({ device: "cuda" }), "Input", "cuda", "webgpu");
  await fails(() => init({ devices: "wasm" }), "Input", "devices", "device");
  await fails(() => runModel(new Uint8Array(), {}, { device: "auto" }), "Input", "auto", "webgpu");
});

for (const [name, work] of Object.entries(ON_EACH)) test(`on wasm: ${name}`, () => work(read, "wasm"));

test("await using releases in turn", { skip: !Symbol.asyncDispose && "this Node has no Symbol.asyncDispose" }, async () => {
  const artifacts = await ontrain.generateArtifacts(await read("golden/reg_mse/model.onnx"), { requiresGrad: ["*"], loss: "MSELoss" });
  const state = await CheckpointState.load(artifacts.checkpoint);
  const module = await Module.create({ trainModel: artifacts.trainingModel, state });
  await module[Symbol.asyncDispose]();
  await Module.create({ trainModel: artifacts.trainingModel, state });
});
