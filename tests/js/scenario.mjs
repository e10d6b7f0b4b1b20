// What must come out the same in Node and in a browser. `read(path)` gives the bytes of a fixture; a check that fails
// throws. The result holds every loss, so that two platforms can be compared bit by bit.

import { batch, npy } from "./npy.mjs";

export function check(condition, message) {
  if (!condition) throw new Error(message);
}

/** Everything that a golden case holds. */
export async function golden(read, name) {
  const file = (path) => read(`golden/${name}/${path}`);
  const trace = JSON.parse(new TextDecoder().decode(await file("trace.json")));
  const inputs = [npy(await file("input_0.npy")), npy(await file("input_1.npy"))];
  return { name, file, trace, batches: trace.batches, feeds: (i) => inputs.map((input) => batch(input, i % trace.batches)) };
}

/** The artifacts of a run: those that ONNX Runtime made, or those that ontrain makes of the same model. */
export async function artifactsOf(ontrain, { file, trace }, run, source) {
  if (source === "ort") {
    return {
      trainingModel: await file("training_model.onnx"),
      evalModel: await file("eval_model.onnx"),
      optimizerModel: await file(run.optimizer_model),
      checkpoint: await file("checkpoint"),
    };
  }
  return ontrain.generateArtifacts(await file("model.onnx"), {
    requiresGrad: trace.requires_grad,
    frozenParams: trace.frozen,
    loss: trace.loss,
    optimizer: run.optimizer === "adamw" ? "AdamW" : "SGD",
    additionalOutputNames: ["output"],
  });
}

/** A module and an optimizer. */
export async function session(ontrain, { trainingModel, evalModel, optimizerModel, checkpoint }, options = {}) {
  const state = await ontrain.CheckpointState.load(checkpoint);
  const module = await ontrain.Module.create({ trainModel: trainingModel, evalModel, state, seed: 1, ...options });
  const optimizer = await ontrain.Optimizer.create(module, { optimizerModel });
  const release = async () => {
    await optimizer.release();
    await module.release();
    await state.release();
  };
  return { state, module, optimizer, release };
}

/** Trains `steps` steps from batch `from` on; gives the losses before each. */
export async function train({ module, optimizer }, data, steps, from = 0) {
  const losses = [];
  for (let i = from; i < from + steps; i++) {
    const { loss } = await module.trainStep(data.feeds(i));
    losses.push(loss);
    await optimizer.step();
    await module.lazyResetGrad();
  }
  return losses;
}

/** Trains one run of a golden case; every loss must be ONNX Runtime's within the case's tolerance. */
export async function replay(ontrain, data, runName, source) {
  const run = data.trace.runs[runName];
  const trained = await session(ontrain, await artifactsOf(ontrain, data, run, source));
  const title = `${data.name} ${runName} on ${source}'s artifacts`;
  const near = (got, want, tolerance, what) => {
    check(Math.abs(got - want) <= tolerance, `${title}: ${what} is ${got}, not ${want} within ${tolerance}`);
  };
  const tolerance = (i) => Math.max(1e-5, 10 * run["loss_sensitivity_1e-7"][i]);
  near((await trained.module.evalStep(data.feeds(0))).loss, run.eval_loss_before, 1e-5, "the eval loss before");
  trained.optimizer.setLearningRate(run.lr);
  const losses = await train(trained, data, run.steps);
  losses.forEach((loss, i) => near(loss, run.losses[i], tolerance(i), `loss ${i}`));
  near((await trained.module.evalStep(data.feeds(0))).loss, run.eval_loss_after, tolerance(run.steps - 1), "the eval loss after");
  await trained.release();
  return losses;
}

/** Saves half-way, goes on from the file, and must walk the same path bit by bit; then exports. */
export async function resumeAndExport(ontrain, data) {
  const run = data.trace.runs.adamw;
  const artifacts = await artifactsOf(ontrain, data, run, "ontrain");
  const first = await session(ontrain, artifacts);
  first.optimizer.setLearningRate(run.lr);
  await train(first, data, 6);
  const checkpoint = await first.state.save({ includeOptimizerState: true });
  const onward = await train(first, data, 6, 6);

  const second = await session(ontrain, { ...artifacts, checkpoint });
  check(second.optimizer.stepCount === 6, `a resumed optimizer has taken 6 steps, not ${second.optimizer.stepCount}`);
  second.optimizer.setLearningRate(run.lr);
  const resumed = await train(second, data, 6, 6);
  check(String(resumed) === String(onward), `resumed losses are ${resumed}, not ${onward}`);

  const { outputs } = await first.module.evalStep(data.feeds(0));
  const exported = await first.module.exportModelForInferencing(["output"]);
  const { output } = await ontrain.runModel(exported, [data.feeds(0)[0]]);
  check(String(output.dims) === String(outputs.output.dims), `the exported model gives ${output.dims}`);
  const worst = output.data.reduce((most, x, i) => Math.max(most, Math.abs(x - outputs.output.data[i])), 0);
  check(worst <= 1e-6, `the exported model differs from the eval step by ${worst}`);
  await first.release();
  await second.release();
  return { onward, output: [...output.data] };
}

/** All of it. */
export async function scenario(ontrain, read) {
  const results = {};
  for (const name of ["reg_mse", "lenet_ce"]) {
    const data = await golden(read, name);
    for (const run of ["adamw", "sgd"]) {
      for (const source of ["ort", "ontrain"]) {
        results[`${name} ${run} ${source}`] = await replay(ontrain, data, run, source);
      }
    }
    results[`${name} resume`] = await resumeAndExport(ontrain, data);
  }
  return results;
}
