// The same training steps on WebGPU by TensorFlow.js and by jax-js, which load no ONNX models: mlp and lenet are written anew
// here, as each library has it, and start from the same parameters. Adam with ontrain's constants; every step reads its loss.

import { tensors } from "./session.mjs";

const ADAM = { rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-6 };
const CLASSES = 10;

/** Inputs and parameters, as `make` makes them of the numbers. */
async function given(load, make) {
  const plain = (type, data, dims) => ({ type, data, dims });
  const { input, labels } = await tensors(load, "inputs", plain);
  const parameters = await tensors(load, "parameters", plain);
  const made = Object.entries(parameters).map(([name, tensor]) => [name, make(tensor, name)]);
  return { input, labels: Int32Array.from(labels.data, Number), parameters: Object.fromEntries(made) };
}

/** Reorders the inputs of the layer that follows lenet's convolutions from channels first to channels last. */
function channelsLast({ data, dims: [rows, columns] }, channels) {
  const pixels = columns / channels;
  const from = (i) => (i % channels) * pixels + Math.floor(i / channels);
  return data.map((_, i) => data[i - (i % columns) + from(i % columns)]);
}

export async function tfjs(tf, load) {
  if (!(await tf.setBackend("webgpu"))) throw new Error("TensorFlow.js has no WebGPU here");
  await tf.ready();
  const convolutional = new TextDecoder().decode(await load("parameters.txt")).includes("conv1.weight");
  const { input, labels, parameters: p } = await given(load, (tensor, name) => {
    const { dims } = tensor;
    const data = convolutional && name === "fc1.weight" ? channelsLast(tensor, 16) : tensor.data;
    const axes = { 1: [0], 2: [1, 0], 4: [2, 3, 1, 0] }[dims.length];
    return tf.variable(tf.transpose(tf.tensor(data, dims), axes));
  });
  const [batch] = input.dims;
  const x = tf.tensor(input.data, convolutional ? [batch, 28, 28, 1] : input.dims);
  const y = tf.cast(tf.oneHot(tf.tensor1d(labels, "int32"), CLASSES), "float32");
  const dense = (h, name) => tf.add(tf.matMul(h, p[`${name}.weight`]), p[`${name}.bias`]);
  const block = (h, name, pad) => {
    const sums = tf.add(tf.conv2d(h, p[`${name}.weight`], 1, pad), p[`${name}.bias`]);
    return tf.maxPool(tf.relu(sums), 2, 2, "valid");
  };
  const mlp = () => dense(tf.relu(dense(x, "fc1")), "fc2");
  const lenet = () => {
    const h = tf.reshape(block(block(x, "conv1", "same"), "conv2", "valid"), [batch, -1]);
    return dense(tf.relu(dense(tf.relu(dense(h, "fc1")), "fc2")), "fc3");
  };
  const model = convolutional ? lenet : mlp;
  const optimizer = tf.train.adam(ADAM.rate, ADAM.beta1, ADAM.beta2, ADAM.epsilon);
  return {
    async step() {
      const loss = optimizer.minimize(() => tf.losses.softmaxCrossEntropy(y, model()), true, Object.values(p));
      const [value] = await loss.data();
      loss.dispose();
      return value;
    },
  };
}

export async function jaxJs(jax, load) {
  const { jit, lax, nn, numpy: np, tree, valueAndGrad } = jax;
  const devices = await jax.init("webgpu");
  if (!devices.includes("webgpu")) throw new Error("jax-js has no WebGPU here");
  jax.defaultDevice("webgpu");
  const made = await given(load, ({ data, dims }) => np.array(data).reshape(dims));
  const { batch, x } = { batch: made.input.dims[0], x: np.array(made.input.data).reshape(made.input.dims) };
  const y = nn.oneHot(np.array(made.labels), CLASSES);

  // Every use of an array consumes it; `.ref` is one more.
  const dense = (h, p, name) => np.dot(h, p[`${name}.weight`].transpose()).add(p[`${name}.bias`]);
  const block = (h, p, name, pad) => {
    const sums = lax.convGeneralDilated(h, p[`${name}.weight`], [1, 1], pad).add(p[`${name}.bias`].reshape([-1, 1, 1]));
    return lax.reduceWindow(nn.relu(sums), np.max, [2, 2], [2, 2]);
  };
  const mlp = (p, x) => dense(nn.relu(dense(x, p, "fc1")), p, "fc2");
  const lenet = (p, x) => {
    const h = block(block(x, p, "conv1", [[2, 2], [2, 2]]), p, "conv2", "VALID").reshape([batch, -1]);
    return dense(nn.relu(dense(nn.relu(dense(h, p, "fc1")), p, "fc2")), p, "fc3");
  };
  const model = "conv1.weight" in made.parameters ? lenet : mlp;
  const lossOf = (p, x, y) => nn.logSoftmax(model(p, x)).mul(y).sum().mul(-1 / batch);
  // Two compiled functions: faster here than one for both, or than compiling the model alone as its own demo does.
  const gradients = jit((p, x, y) => valueAndGrad(lossOf)(p, x, y));
  const { rate, beta1, beta2, epsilon } = ADAM;
  const update = jit((p, m, v, g, scale1, scale2) => {
    const [newP, newM, newV] = [{}, {}, {}];
    for (const name of Object.keys(p)) {
      const mean = m[name].mul(beta1).add(g[name].ref.mul(1 - beta1));
      const square = v[name].mul(beta2).add(g[name].ref.mul(g[name]).mul(1 - beta2));
      [newM[name], newV[name]] = [mean.ref, square.ref];
      const size = np.sqrt(square.mul(scale2.ref)).add(epsilon);
      newP[name] = p[name].sub(mean.mul(scale1.ref).div(size).mul(rate));
    }
    tree.dispose([scale1, scale2]);
    return [newP, newM, newV];
  });

  const zeros = () => Object.fromEntries(Object.entries(made.parameters).map(([name, p]) => [name, np.zeros(p.shape)]));
  let [p, m, v] = [made.parameters, zeros(), zeros()];
  let steps = 0;
  return {
    async step() {
      steps++;
      const [loss, g] = gradients(tree.ref(p), x.ref, y.ref);
      const scale = (beta) => np.array(Float32Array.of(1 / (1 - beta ** steps))).reshape([]);
      [p, m, v] = update(p, m, v, g, scale(beta1), scale(beta2));
      return (await loss.data())[0];
    },
  };
}
