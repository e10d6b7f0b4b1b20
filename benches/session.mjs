// Training steps in JavaScript, for node.mjs and chromium.mjs: `open` loads a training of ontrain or of a peer, and what it
// gives answers the lines that step.rs answers.

const ARRAYS = { float32: Float32Array, int64: BigInt64Array };

/** The tensors that the text file `list` of the folder names, made by `make`. */
export async function tensors(load, list, make) {
  const text = new TextDecoder().decode(await load(`${list}.txt`));
  const found = {};
  for (const line of text.trimEnd().split("\n")) {
    const [, file, type, sizes, name] = /^(\S+) (\S+) (\S+) (.+)$/.exec(line);
    const { buffer, byteOffset, byteLength } = await load(file);
    const data = new ARRAYS[type](buffer.slice(byteOffset, byteOffset + byteLength));
    found[name] = make(type, data, sizes.split("x").map(Number));
  }
  return found;
}

export async function ontrain(library, load, device = "wasm") {
  const { CheckpointState, init, Module, Optimizer, Tensor, runModel } = library;
  await init({ device });
  const make = (type, data, dims) => new Tensor(type, data, dims);
  const state = await CheckpointState.load(await load("checkpoint"));
  const module = await Module.create({ trainModel: await load("training_model.onnx"), state, seed: 0 });
  const optimizer = await Optimizer.create(module, { optimizerModel: await load("optimizer_model.onnx") });
  const feeds = await tensors(load, "inputs", make);
  const product = await load("matmul.onnx");
  const operations = Number(new TextDecoder().decode(await load("matmul.flop")));
  const matrices = await tensors(load, "matmul", make);
  return {
    async step() {
      const { loss } = await module.trainStep(feeds);
      await optimizer.step();
      await module.lazyResetGrad();
      return loss;
    },
    async rate() {
      const start = performance.now();
      await runModel(product, matrices);
      return operations / (performance.now() - start) / 1e6;
    },
  };
}

export async function onnxruntimeWeb(library, load) {
  const { Tensor, TrainingSession } = library;
  const session = await TrainingSession.create(
    {
      checkpointState: await load("checkpoint"),
      trainModel: await load("training_model.onnx"),
      evalModel: await load("eval_model.onnx"),
      optimizerModel: await load("optimizer_model.onnx"),
    },
    { executionProviders: ["wasm"] },
  );
  const feeds = await tensors(load, "inputs", (type, data, dims) => new Tensor(type, data, dims));
  return {
    async step() {
      const results = await session.runTrainStep(feeds);
      await session.runOptimizerStep();
      await session.lazyResetGrad();
      return Object.values(results)[0].data[0];
    },
  };
}

/** Answers lines on a training. */
export function answers(session) {
  let loss;
  return async (line) => {
    const [command, count] = line.split(" ");
    if (command === "rate") return String(await session.rate());
    if (command === "loss") return String(loss);
    if (command !== "steps") throw new Error(`there is no command ${command}`);
    const times = [];
    for (let i = 0; i < Number(count); i++) {
      const start = performance.now();
      loss = await session.step();
      times.push((performance.now() - start).toFixed(5));
    }
    return times.join(" ");
  };
}
