// Tensors: what goes in and comes out, and what is refused.

import assert from "node:assert/strict";
import { test } from "node:test";

import { InputError, Tensor, runModel } from "ontrain";
import { model } from "./onnx.mjs";

const refused = (what, ...words) => assert.throws(what, (error) => {
  assert.ok(error instanceof InputError, String(error));
  assert.equal(error.kind, "Input");
  for (const word of words) assert.ok(error.message.includes(word), `"${error.message}" does not say ${word}`);
  return true;
});

test("a typed array is taken as it is", () => {
  const data = new Float32Array(6);
  const tensor = new Tensor("float32", data, [2, 3]);
  assert.equal(tensor.data, data);
  assert.deepEqual([tensor.type, tensor.dims, tensor.size], ["float32", [2, 3], 6]);
  assert.equal(Tensor.from(tensor), tensor);
});

test("plain values become elements, or are refused", () => {
  assert.deepEqual(Tensor.int64([1, 2n, -3]).data, BigInt64Array.of(1n, 2n, -3n));
  assert.deepEqual(new Tensor("bool", [true, 0, 1]).data, Uint8Array.of(1, 0, 1));
  assert.deepEqual(new Tensor("int32", [1, -2]).dims, [2]);
  assert.deepEqual(new Tensor("float32", [0.5], []).dims, []);
  refused(() => Tensor.int64([1.5]), "int64", "1.5");
  refused(() => Tensor.int64([2n ** 63n]), "int64");
  refused(() => new Tensor("uint8", [256]), "uint8", "256");
  refused(() => new Tensor("bool", [2]), "bool", "2");
  refused(() => new Tensor("float32", ["1"]), "float32");
  refused(() => new Tensor("float16", [1]), "float16", "Uint16Array");
});

test("types, data and sizes that do not fit are refused", () => {
  refused(() => new Tensor("float", new Float32Array(1)), "float", "float32");
  refused(() => new Tensor("toString", new Float32Array(1)), "toString");
  refused(() => new Tensor("int64", new Int32Array(1)), "BigInt64Array", "Int32Array");
  refused(() => new Tensor("float32", new Float32Array(5), [2, 3]), "6", "5");
  refused(() => new Tensor("float32", new Float32Array(1), [-1]), "-1");
  refused(() => new Tensor("float32", new Float32Array(1), [1.5]), "1.5");
  refused(() => Tensor.from(new Float32Array(1)), "Float32Array");
  refused(() => Tensor.from(null), "null");
});

/** onnxruntime-web's Tensor, as far as others see it. */
class OrtTensor {
  constructor(type, data, dims) {
    this.cpuData = data;
    this.dataLocation = "cpu";
    Object.assign(this, { type, dims });
  }
  get data() {
    return this.cpuData;
  }
}

test("onnxruntime-web's tensors go in", async () => {
  const double = model({
    inputs: [["x", ["n"]]],
    outputs: [["y", ["n"]]],
    nodes: [["twice", "Add", ["x", "x"], ["y"]]],
  });
  const { y } = await runModel(double, { x: new OrtTensor("float32", Float32Array.of(1, 2.5), [2]) });
  assert.ok(y instanceof Tensor);
  assert.deepEqual([y.type, y.dims, [...y.data]], ["float32", [2], [2, 5]]);
  // A part of a larger buffer, and more than one size in turn.
  const part = Float32Array.of(9, 1, 2, 3, 9).subarray(1, 4);
  const { y: again } = await runModel(double, [{ type: "float32", data: part, dims: [3] }]);
  assert.deepEqual([...again.data], [2, 4, 6]);
});

const ONNX = { float32: 1, uint8: 2, int8: 3, uint16: 4, int16: 5, int32: 6, int64: 7, bool: 9, float16: 10, float64: 11, uint32: 12, uint64: 13 };
for (const [type, number] of Object.entries(ONNX)) {
  test(`${type} goes through unchanged`, async () => {
    const same = model({ inputs: [["x", [2], number]], outputs: [["y", [2], number]], nodes: [["same", "Identity", ["x"], ["y"]]] });
    const x = type === "float16" ? new Tensor(type, Uint16Array.of(0x3c00, 0x4000)) : new Tensor(type, [1, 0]);
    const { y } = await runModel(same, { x });
    assert.deepEqual(y, x);
  });
}

test("a bool element other than 0 and 1 is refused", async () => {
  const not = model({ inputs: [["x", [1], 9]], outputs: [["y", [1], 9]], nodes: [["not", "Not", ["x"], ["y"]]] });
  await assert.rejects(runModel(not, { x: { type: "bool", data: Uint8Array.of(2), dims: [1] } }), InputError);
});
