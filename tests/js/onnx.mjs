// Writes small ONNX models, for tests that need one of a certain shape. Protobuf by hand: a message is a list of
// [field, value] where a value is a number (varint), bytes, a string, or a message.

const utf8 = new TextEncoder();

function varint(n) {
  const out = [];
  for (let rest = BigInt.asUintN(64, BigInt(n)); ; ) {
    const low = Number(rest & 127n);
    rest >>= 7n;
    out.push(rest === 0n ? low : low | 128);
    if (rest === 0n) return out;
  }
}

function message(fields) {
  const out = [];
  for (const [field, value] of fields) {
    if (typeof value === "number") {
      out.push(...varint(field * 8), ...varint(value));
      continue;
    }
    const bytes = typeof value === "string" ? utf8.encode(value) : Array.isArray(value) ? message(value) : value;
    out.push(...varint(field * 8 + 2), ...varint(bytes.length), ...bytes);
  }
  return Uint8Array.from(out);
}

const FLOAT = 1;

const value = ([name, dims, type = FLOAT]) => {
  const shape = dims.map((d) => [1, typeof d === "number" ? [[1, d]] : [[2, d]]]);
  return [[1, name], [2, [[1, [[1, type], [2, shape]]]]]];
};

const tensor = ([name, dims, values]) => [
  ...dims.map((d) => [1, d]),
  [2, FLOAT],
  [8, name],
  [9, new Uint8Array(Float32Array.from(values).buffer)],
];

/** A float32 tensor that lies in a file. */
export const external = (name, dims, location) => [
  ...dims.map((d) => [1, d]),
  [2, FLOAT],
  [8, name],
  [13, [[1, "location"], [2, location]]],
  [14, 1],
];

const attribute = ([name, int]) => [[1, name], [3, int], [20, 2]];

const node = ([name, type, inputs, outputs, attributes = {}]) => [
  ...inputs.map((x) => [1, x]),
  ...outputs.map((x) => [2, x]),
  [3, name],
  [4, type],
  ...Object.entries(attributes).map((a) => [5, attribute(a)]),
];

/**
 * A model. `inputs` and `outputs`: [name, dims, ONNX type?]; `nodes`: [name, operator, inputs, outputs, integer attributes?];
 * `weights`: [name, dims, values] of float32; `externals`: from `external`.
 */
export function model({ inputs, outputs, nodes, weights = [], externals = [], opset = 17 }) {
  const graph = [
    ...nodes.map((n) => [1, node(n)]),
    [2, "test"],
    ...weights.map((w) => [5, tensor(w)]),
    ...externals.map((e) => [5, e]),
    ...inputs.map((v) => [11, value(v)]),
    ...outputs.map((v) => [12, value(v)]),
  ];
  return message([[1, 8], [7, graph], [8, [[1, ""], [2, opset]]]]);
}
