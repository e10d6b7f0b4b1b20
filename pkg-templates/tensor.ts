import { InputError, UnsupportedError } from "./errors.js";
import { describe } from "./engine.js";

/** The array that holds the elements of each type. `bool` is 0 or 1; `float16` and `bfloat16` are their 16 bits. */
export interface TensorDataMap {
  float32: Float32Array;
  uint8: Uint8Array;
  int8: Int8Array;
  uint16: Uint16Array;
  int16: Int16Array;
  int32: Int32Array;
  int64: BigInt64Array;
  bool: Uint8Array;
  float16: Uint16Array;
  float64: Float64Array;
  uint32: Uint32Array;
  uint64: BigUint64Array;
  bfloat16: Uint16Array;
}

/** Element types, by ONNX Runtime's names. */
export type TensorType = keyof TensorDataMap;

/** The elements of a tensor of some type. */
export type TensorData = TensorDataMap[TensorType];

/** What a constructor takes for elements: the typed array, or plain values, which are checked one by one. */
export type TensorValues = ArrayBufferView | readonly number[] | readonly bigint[] | readonly boolean[];

/** What is accepted wherever a tensor goes in: ontrain's `Tensor`, onnxruntime-web's, or a plain object like them. */
export interface TensorLike {
  readonly type: string;
  readonly data: unknown;
  readonly dims: readonly number[];
}

type ArrayClass = { new (buffer: ArrayBuffer): TensorData; new (length: number): TensorData; BYTES_PER_ELEMENT: number };

interface TypeInfo {
  /** `TensorProto.DataType`. */
  onnx: number;
  array: ArrayClass;
  /** For plain values: a whole number in [low, high], a bigint, a flag, or any number. */
  range?: readonly [number, number];
}

const bits = (n: number): readonly [number, number] => [0, 2 ** n - 1];
const signed = (n: number): readonly [number, number] => [-(2 ** (n - 1)), 2 ** (n - 1) - 1];

const TYPES: Record<TensorType, TypeInfo> = {
  float32: { onnx: 1, array: Float32Array },
  uint8: { onnx: 2, array: Uint8Array, range: bits(8) },
  int8: { onnx: 3, array: Int8Array, range: signed(8) },
  uint16: { onnx: 4, array: Uint16Array, range: bits(16) },
  int16: { onnx: 5, array: Int16Array, range: signed(16) },
  int32: { onnx: 6, array: Int32Array, range: signed(32) },
  int64: { onnx: 7, array: BigInt64Array },
  bool: { onnx: 9, array: Uint8Array, range: [0, 1] },
  float16: { onnx: 10, array: Uint16Array },
  float64: { onnx: 11, array: Float64Array },
  uint32: { onnx: 12, array: Uint32Array, range: bits(32) },
  uint64: { onnx: 13, array: BigUint64Array },
  bfloat16: { onnx: 16, array: Uint16Array },
};

/** A dense row-major tensor in JavaScript's memory. The constructor is onnxruntime-web's. */
export class Tensor<T extends TensorType = TensorType> {
  /** Element type. */
  readonly type: T;
  /** The elements; the tensor does not copy a typed array that it is given. */
  readonly data: TensorDataMap[T];
  /** Sizes; empty for a scalar. */
  readonly dims: readonly number[];

  /**
   * `dims` defaults to one dimension of as many elements as there are. Fails with an `InputError` for an unknown
   * type, data of another type, a value that the type cannot hold, or sizes that the data does not fill.
   */
  constructor(type: T, data: TensorValues, dims?: readonly number[]) {
    this.type = type;
    this.data = elements(type, data) as TensorDataMap[T];
    this.dims = sizes(type, dims ?? [this.data.length], this.data.length);
  }

  /** A tensor from one that is like it, without a copy where possible; a `Tensor` comes back as it is. */
  static from(like: TensorLike): Tensor {
    if (like instanceof Tensor) return like;
    const found = like as TensorLike | null | undefined;
    if (typeof found !== "object" || found === null || !("type" in found && "data" in found && "dims" in found)) {
      throw new InputError(`this is not a tensor; expected an object with type, data and dims; found ${describe(like)}`);
    }
    return new Tensor(found.type as TensorType, found.data as TensorValues, found.dims);
  }

  /** float32 from numbers. */
  static float32(data: TensorValues, dims?: readonly number[]): Tensor<"float32"> {
    return new Tensor("float32", data, dims);
  }

  /** int64 from whole numbers or bigints: class labels, token ids. */
  static int64(data: TensorValues, dims?: readonly number[]): Tensor<"int64"> {
    return new Tensor("int64", data, dims);
  }

  /** Number of elements. */
  get size(): number {
    return this.data.length;
  }
}

/**
 * A tensor with elements of its own.
 * @internal
 */
export function copyOf(like: TensorLike): Tensor {
  const { type, data, dims } = Tensor.from(like);
  return new Tensor(type, data.slice(), dims);
}

/** @internal */
export const onnxType = (tensor: Tensor): number => TYPES[tensor.type].onnx;

/** @internal */
export const dimsOf = (tensor: Tensor): Uint32Array => Uint32Array.from(tensor.dims);

/**
 * The elements' bytes, without a copy.
 * @internal
 */
export function rawBytes({ data }: Tensor): Uint8Array {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/**
 * A tensor that the engine handed out as [ONNX type, sizes, bytes].
 * @internal
 */
export function fromRaw([onnx, dims, bytes]: unknown[]): Tensor {
  const known = Object.entries(TYPES).find(([, info]) => info.onnx === onnx);
  if (known === undefined) throw new UnsupportedError(`tensors of ONNX data type ${String(onnx)}`);
  const [type, info] = known;
  // A buffer of its own, so it begins where an array of any type may begin.
  const { buffer } = bytes as Uint8Array<ArrayBuffer>;
  return new Tensor(type as TensorType, new info.array(buffer), [...(dims as Uint32Array)]);
}

function elements(type: TensorType, data: unknown): TensorData {
  const info = Object.hasOwn(TYPES, type) ? TYPES[type] : undefined;
  if (info === undefined) {
    const known = Object.keys(TYPES).join(", ");
    throw new InputError(`there is no tensor type ${JSON.stringify(type)}; expected one of ${known}`);
  }
  if (ArrayBuffer.isView(data)) {
    if (data instanceof info.array) return data as TensorData;
    if (type === "bool" && data instanceof Uint8ClampedArray) return view(data, Uint8Array);
    // Platforms that have Float16Array hand it out for float16.
    if (type === "float16" && describe(data) === "Float16Array") return view(data, Uint16Array);
  } else if (Array.isArray(data) && type !== "float16" && type !== "bfloat16") {
    // (Plain numbers for those two would have to be either values or bits.)
    return converted(type, info, data);
  }
  const wanted = `${info.array.name}${type.endsWith("float16") ? " of bits" : " or a plain array"}`;
  throw new InputError(`data of a ${type} tensor has the wrong type; expected ${wanted}; found ${describe(data)}`);
}

function view<A>(data: ArrayBufferView, array: new (buffer: ArrayBufferLike, start: number, bytes: number) => A): A {
  const width = (array as unknown as ArrayClass).BYTES_PER_ELEMENT;
  return new array(data.buffer, data.byteOffset, data.byteLength / width);
}

/** Plain values as elements, each one checked: what would be rounded or wrapped in silence is an error. */
function converted(type: TensorType, info: TypeInfo, values: readonly unknown[]): TensorData {
  const wrong = (value: unknown): never => {
    throw new InputError(`a ${type} tensor cannot hold ${describe(value)}`);
  };
  const { array, range } = info;
  const result = new array(values.length);
  if (result instanceof BigInt64Array || result instanceof BigUint64Array) {
    values.forEach((value, i) => {
      const whole = typeof value === "bigint" || Number.isSafeInteger(value) ? BigInt(value as bigint | number) : wrong(value);
      result[i] = whole;
      if (result[i] !== whole) wrong(value);
    });
    return result;
  }
  values.forEach((value, i) => {
    const number = type === "bool" && typeof value === "boolean" ? Number(value) : value;
    if (typeof number !== "number") return wrong(value);
    if (range && !(Number.isInteger(number) && number >= range[0] && number <= range[1])) wrong(value);
    result[i] = number;
  });
  return result;
}

function sizes(type: TensorType, dims: unknown, length: number): readonly number[] {
  const isSize = (d: unknown): d is number => Number.isInteger(d) && (d as number) >= 0 && (d as number) < 2 ** 32;
  if (!Array.isArray(dims) || !dims.every(isSize)) {
    const found = Array.isArray(dims) ? `[${dims.join(",")}]` : describe(dims);
    throw new InputError(`dims are not sizes; expected an array of whole numbers, 0 or more; found ${found}`);
  }
  const wanted = dims.reduce((n: number, d: number) => n * d, 1);
  if (wanted !== length) {
    const shape = `${type}[${dims.join(",")}]`;
    throw new InputError(`data does not fill a tensor ${shape}; expected ${wanted} elements; found ${length}`);
  }
  return Object.freeze([...dims]);
}
