// Reads NumPy's .npy files (version 1, C order) into { type, data, dims }, wherever this runs.

const ARRAYS = { "<f4": ["float32", Float32Array], "<i8": ["int64", BigInt64Array] };

export function npy(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (view.getUint32(0) !== 0x934e554d || view.getUint8(6) !== 1) throw new Error("not a .npy file of version 1");
  const start = 10 + view.getUint16(8, true);
  const header = new TextDecoder().decode(bytes.subarray(10, start));
  const descr = /'descr': '([^']+)'/.exec(header)?.[1];
  const shape = /'shape': \(([^)]*)\)/.exec(header)?.[1];
  if (!(descr in ARRAYS) || shape === undefined || !header.includes("'fortran_order': False")) {
    throw new Error(`cannot read a .npy file with the header ${header}`);
  }
  const [type, array] = ARRAYS[descr];
  const dims = shape.split(",").filter((part) => part.trim() !== "").map(Number);
  return { type, data: new array(bytes.slice(start).buffer), dims };
}

// Batch `i` of a tensor whose first dimension counts batches.
export function batch({ type, data, dims: [, ...dims] }, i) {
  const size = dims.reduce((n, d) => n * d, 1);
  return { type, data: data.slice(i * size, (i + 1) * size), dims };
}
