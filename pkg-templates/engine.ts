import load, * as raw from "./ontrain.js";
import { DeviceError, InputError, LoadError, StateError, typed } from "./errors.js";

/** The engine itself or its address: for a bundler that moves the file, a cache, or a service worker. */
export type EngineSource = URL | string | Response | Uint8Array | ArrayBuffer | WebAssembly.Module;

let loading: Promise<unknown> | undefined;
let broken: Error | undefined;

/**
 * Loads the engine, once. Fails with a `LoadError`; the next call tries again.
 * @internal
 */
export async function engine(source?: EngineSource): Promise<typeof raw> {
  loading ??= start(source).catch((cause: unknown) => {
    loading = undefined;
    const why = cause instanceof Error ? cause.message : String(cause);
    const error = new LoadError(`the engine (ontrain_bg.wasm) could not be loaded: ${why}`);
    error.cause = cause;
    throw error;
  });
  await loading;
  return raw;
}

async function start(given: EngineSource | undefined): Promise<void> {
  const source = given ?? new URL("ontrain_bg.wasm", import.meta.url);
  if (!(source instanceof URL) || source.protocol !== "file:" || !isNode()) {
    await load({ module_or_path: source });
    return;
  }
  // Node's fetch does not read files. The name stands in a variable so that bundlers for browsers let it be.
  const files = "node:fs/promises";
  const { readFile } = (await import(/* @vite-ignore */ /* webpackIgnore: true */ files)) as {
    readFile(path: URL): Promise<Uint8Array<ArrayBuffer>>;
  };
  await load({ module_or_path: await readFile(source) });
}

/** @internal */
export function isNode(): boolean {
  return typeof process === "object" && typeof process.versions?.node === "string";
}

/**
 * Calls into the engine: its raw classes are for this alone. Its errors become classes. A trap or panic is a bug in the
 * engine: its memory can no longer be trusted, so this call and every later one fail with a plain `Error`, or with a
 * `DeviceError` if memory ran out or the GPU failed.
 * @internal
 */
export function call<T>(work: () => T): T {
  if (broken !== undefined) throw broken;
  try {
    return work();
  } catch (thrown) {
    const error = typed(thrown);
    if (error !== undefined) throw error;
    if (!(thrown instanceof Error)) throw thrown;
    const panicked = "panic" in thrown;
    // A RangeError is the end of the stack.
    const trapped = thrown instanceof WebAssembly.RuntimeError || thrown instanceof RangeError;
    if (!panicked && !trapped) throw thrown;
    broken = stopped(thrown, panicked);
    throw broken;
  }
}

function stopped(thrown: Error, panicked: boolean): Error {
  const error = reason(thrown.message, panicked);
  error.cause = thrown;
  return error;
}

function reason(message: string, panicked: boolean): Error {
  // Rust answers a failed allocation with `unreachable`, and a panic is told apart by its mark.
  if (!panicked && message.includes("unreachable")) {
    return new DeviceError("the engine stopped, most likely because memory ran out; load ontrain anew to go on");
  }
  // The library under the engine panics where a browser reports a fault of its own: a driver, its compiler.
  if (panicked && message.includes("wgpu")) {
    return new DeviceError(`the GPU failed in a way that stopped the engine; load ontrain anew to go on: ${message}`);
  }
  return new Error(`ontrain's engine stopped on an internal error (please report it): ${message}`);
}

/**
 * Does work that may have to wait for the device: `start` begins it by a call into the engine.
 * @internal
 */
export async function settle<T>(start: () => T | raw.RawTask): Promise<T> {
  let answer = call(start);
  while (answer instanceof raw.RawTask) {
    const task: raw.RawTask = answer;
    await call(() => task.woken());
    answer = call(() => task.resume() as T | raw.RawTask);
  }
  return answer;
}

/**
 * Calls that are made one after the other, in the order in which they were asked for. One that fails does not hold up the
 * next.
 * @internal
 */
export class Queue {
  #last: Promise<unknown> = Promise.resolve();

  add<T>(work: () => T | Promise<T>): Promise<T> {
    const turn = this.#last.then(work);
    this.#last = turn.catch(() => undefined);
    return turn;
  }
}

/**
 * An object whose memory lies in the engine, until it is released.
 * @internal
 */
export class Handle<R extends { free(): void }> {
  #raw: R | undefined;

  constructor(
    readonly what: string,
    raw: R,
  ) {
    this.#raw = raw;
  }

  get raw(): R {
    if (this.#raw === undefined) throw new StateError(`this ${this.what} has been released`);
    return this.#raw;
  }

  get released(): boolean {
    return this.#raw === undefined;
  }

  /** Gives the object up: it is the caller's to free. Undefined if that has been done before. */
  take(): R | undefined {
    const raw = this.#raw;
    this.#raw = undefined;
    return raw;
  }
}

/**
 * Frees a raw object. After a trap it may be in use for ever, and its memory is lost anyhow.
 * @internal
 */
export function free(raw: { free(): void } | undefined): void {
  if (broken === undefined) raw?.free();
}

/**
 * Gives a class `[Symbol.dispose]` and `[Symbol.asyncDispose]`, for `using` and `await using`, where the platform has those
 * symbols.
 * @internal
 */
export function disposable(type: { prototype: { release(): Promise<void> } }): void {
  if (!("dispose" in Symbol)) return;
  const dispose = function (this: { release(): Promise<void> }): void {
    void this.release();
  };
  const later = function (this: { release(): Promise<void> }): Promise<void> {
    return this.release();
  };
  const property = (value: unknown) => ({ value, configurable: true, writable: true });
  Object.defineProperty(type.prototype, Symbol.dispose, property(dispose));
  if ("asyncDispose" in Symbol) Object.defineProperty(type.prototype, Symbol.asyncDispose, property(later));
}

/** Bytes as ontrain takes them. */
export type Bytes = Uint8Array | ArrayBuffer;

/**
 * A view of the caller's bytes.
 * @internal
 */
export function bytesOf(value: unknown, what: string): Uint8Array {
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  throw new InputError(`${what} is not bytes; expected a Uint8Array or ArrayBuffer; found ${describe(value)}`);
}

/**
 * A list of strings, checked.
 * @internal
 */
export function namesOf(value: unknown, what: string): string[] {
  if (Array.isArray(value) && value.every((name) => typeof name === "string")) return value;
  throw new InputError(`${what} is not a list of names; expected an array of strings; found ${describe(value)}`);
}

/**
 * A string, checked.
 * @internal
 */
export function nameOf(value: unknown, what: string): string {
  if (typeof value === "string") return value;
  throw new InputError(`${what} is not a string; found ${describe(value)}`);
}

/**
 * An options object without keys that nobody reads: a misspelt option must not be passed over.
 * @internal
 */
export function optionsOf<T extends object>(value: T, known: readonly (keyof T & string)[], what: string): T {
  if (typeof value !== "object" || value === null) {
    throw new InputError(`${what} takes an object of options; found ${describe(value)}`);
  }
  const other = Object.keys(value).find((key) => !(known as readonly string[]).includes(key));
  if (other === undefined) return value;
  throw new InputError(`${what} has no option "${other}"; expected ${known.join(", ")}`);
}

/**
 * A number, checked.
 * @internal
 */
export function numberOf(value: unknown, what: string): number {
  if (typeof value === "number") return value;
  throw new InputError(`${what} is not a number; found ${describe(value)}`);
}

/**
 * Files by name, for the engine.
 * @internal
 */
export function filesOf(files: Readonly<Record<string, Bytes>> | undefined): raw.RawFiles {
  const list = Object.entries(files ?? {}).map(([name, data]) => [name, bytesOf(data, `file "${name}"`)] as const);
  return call(() => {
    const result = new raw.RawFiles();
    for (const [name, data] of list) result.add(name, data);
    return result;
  });
}

/**
 * What a value is, in a word or two.
 * @internal
 */
export function describe(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (typeof value !== "object") return `${typeof value} ${String(value)}`;
  return value.constructor?.name ?? "an object";
}

/**
 * A random seed.
 * @internal
 */
export async function randomSeed(): Promise<bigint> {
  let source: Pick<Crypto, "getRandomValues"> | undefined = globalThis.crypto;
  if (source === undefined) {
    // Node 18 keeps it in a module.
    const name = "node:crypto";
    source = ((await import(/* @vite-ignore */ /* webpackIgnore: true */ name)) as { webcrypto: Crypto }).webcrypto;
  }
  return source.getRandomValues(new BigUint64Array(1))[0] ?? 0n;
}

/**
 * A seed given by the caller.
 * @internal
 */
export function seedOf(value: number | bigint): bigint {
  if (typeof value === "bigint" || Number.isSafeInteger(value)) return BigInt.asUintN(64, BigInt(value));
  throw new InputError(`the seed is not an integer; found ${describe(value)}`);
}
