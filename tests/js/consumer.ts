// A program of a user's, only compiled: the whole surface, strictly.

import {
  type Artifacts, CheckpointState, type Device, device, type DeviceName, type ErrorKind, generateArtifacts, init, LinearLRScheduler,
  Module, OntrainError, Optimizer, runModel, StateError, type StepResult, Tensor,
} from "ontrain";

export async function fineTune(model: Uint8Array, images: Float32Array, labels: number[]): Promise<Uint8Array> {
  const chosen: Device = await init({ device: "auto" });
  const name: DeviceName = device().name;
  console.log(name, chosen.adapter ?? "no GPU", chosen.fallback?.length);
  const artifacts: Artifacts = await generateArtifacts(model, {
    requiresGrad: ["fc*"],
    frozenParams: ["conv*"],
    loss: { type: "CrossEntropyLoss", weight: [1, 2], ignoreIndex: -1 },
    optimizer: { type: "AdamW", weightDecay: 0.01, clipGradNorm: 1 },
    additionalOutputNames: ["output"],
  });
  if (artifacts.optimizerModel === undefined) throw new Error("no optimizer");
  using state = await CheckpointState.load(artifacts.checkpoint);
  const { trainingModel: trainModel, evalModel } = artifacts;
  await using module = await Module.create({ trainModel, evalModel, state, seed: 1n, device: name });
  using optimizer = await Optimizer.create(module, { optimizerModel: artifacts.optimizerModel });
  using scheduler = await LinearLRScheduler.create(optimizer, 10, 100, 1e-3);
  const input = new Tensor("float32", images, [labels.length, 784]);
  try {
    const result: StepResult = await module.trainStep({ input, labels: { type: "int64", data: labels, dims: [labels.length] } });
    const scores: Tensor | undefined = result.outputs["output"];
    const first: number | bigint | undefined = scores?.data[0];
    console.log(result.loss, first, optimizer.getLearningRate(), optimizer.stepCount);
    await optimizer.step();
    await module.lazyResetGrad();
    await scheduler.step();
    const nothing: void = await module.startTrainStep([input]);
    const { loss }: StepResult = await module.readLoss();
    console.log(nothing, loss, module.device === "webgpu");
  } catch (error) {
    if (error instanceof StateError) console.error(error.at ?? "somewhere");
    if (error instanceof OntrainError) {
      const kind: ErrorKind = error.kind;
      console.error(kind);
    }
    throw error;
  }
  const weights: Float32Array = (await module.getContiguousParameters()).data;
  await module.loadParametersBuffer(weights);
  state.properties.set("epoch", 1);
  const bias: Tensor = await state.parameters.get("fc.bias");
  await state.parameters.set("fc.bias", bias);
  const exported = await module.exportModelForInferencing(["output"]);
  await runModel(exported, [input], { outputs: ["output"], device: "wasm" });
  return state.save({ includeOptimizerState: true });
}
