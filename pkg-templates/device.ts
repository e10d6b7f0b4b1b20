import type { RawDevice } from "./ontrain.js";
import { call, describe, engine, type EngineSource, isNode, optionsOf, Queue, settle } from "./engine.js";
import { DeviceError, InputError, OntrainError } from "./errors.js";

/** Where modules compute: on the processor, or on the GPU. */
export type DeviceName = "wasm" | "webgpu";

/** A device that has been opened. */
export interface Device {
  readonly name: DeviceName;
  /** The GPU, in the platform's words: its vendor and kind. */
  readonly adapter?: string;
  /** Why `auto` has not chosen the GPU. */
  readonly fallback?: string;
}

/** How the engine is loaded, and where it computes. */
export interface InitOptions {
  /**
   * The device for what is made from now on. `auto` takes the GPU if there is one and it computes a small train step as the
   * processor does, and otherwise the processor. Default: the one chosen before, at first `wasm`.
   */
  device?: DeviceName | "auto";
  /** Where the engine comes from, if not from the file beside this one. */
  wasm?: EngineSource;
}

const inits = new Queue();
let chosen: Device = { name: "wasm" };

/**
 * Loads the engine and opens a device, which becomes the default. Whoever does not call it computes on `wasm`: that runs
 * everywhere with the same results, and asks nothing of the machine's GPU.
 *
 * Fails with a `LoadError` if the engine cannot be fetched or is not WebAssembly that this platform runs, and with a
 * `DeviceError` if there is no such device or it is too small: its message says which. The next call tries again, and opens a
 * GPU anew that has been lost.
 */
export async function init(options: InitOptions = {}): Promise<Device> {
  const { device: wanted, wasm } = optionsOf(options, ["device", "wasm"], "init");
  if (wanted !== undefined && wanted !== "auto") deviceName(wanted);
  await engine(wasm);
  if (wanted === undefined) return chosen;
  return inits.add(async () => (chosen = wanted === "auto" ? await bestDevice() : (await opened(wanted)).device));
}

/** The default device: where modules are made that name none. */
export function device(): Device {
  return chosen;
}

/** @internal */
export function deviceName(value: unknown): DeviceName {
  if (value === "wasm" || value === "webgpu") return value;
  throw new InputError(`there is no device ${describe(value)}; expected wasm or webgpu`);
}

/**
 * The device of that name, opened if need be.
 * @internal
 */
export async function rawDevice(name: DeviceName | undefined): Promise<RawDevice> {
  return (await opened(name === undefined ? chosen.name : deviceName(name))).raw;
}

interface Opened {
  device: Device;
  raw: RawDevice;
}

const known = new Map<DeviceName, Promise<Opened>>();

async function opened(name: DeviceName): Promise<Opened> {
  for (;;) {
    const opening = known.get(name) ?? open(name);
    known.set(name, opening);
    const forget = (): void => {
      if (known.get(name) === opening) known.delete(name);
    };
    try {
      const result = await opening;
      if (!call(() => result.raw.isLost)) return result;
      forget();
    } catch (error) {
      forget();
      throw error;
    }
  }
}

async function open(name: DeviceName): Promise<Opened> {
  const { openDevice } = await engine();
  if (name === "wasm") return { device: Object.freeze({ name }), raw: await settle(() => openDevice(name)) };
  const gpu = webGpu();
  const raw = await settle(() => asInBrowser(() => openDevice(name)));
  // Asked as the engine asks, which is not told these words.
  const info = (await gpu.requestAdapter({ powerPreference: "high-performance" }))?.info;
  const words = [info?.vendor, info?.architecture, info?.description].filter((word) => word);
  return { device: Object.freeze({ name, adapter: words.join(" ") || "unknown" }), raw };
}

async function bestDevice(): Promise<Device> {
  try {
    const { device, raw } = await opened("webgpu");
    await settle(() => raw.selfCheck());
    return device;
  } catch (error) {
    if (!(error instanceof OntrainError)) throw error;
    // An engine that has stopped is no fallback: this call fails then.
    const { device } = await opened("wasm");
    return Object.freeze({ ...device, fallback: error.message });
  }
}

/** As much of WebGPU as is used here. */
interface Gpu {
  requestAdapter(options: { powerPreference: string }): Promise<{ info?: Partial<Record<string, string>> } | null>;
}

function webGpu(): Gpu {
  const { navigator, isSecureContext } = globalThis as { navigator?: { gpu?: Gpu }; isSecureContext?: boolean };
  if (navigator?.gpu !== undefined) return navigator.gpu;
  let hint = "";
  if (isNode()) hint = "; in Node the npm package webgpu provides it";
  else if (isSecureContext === false) hint = "; browsers offer it to pages from https or localhost only";
  throw new DeviceError(`there is no WebGPU here: navigator.gpu is undefined${hint}`);
}

/** The engine looks for `navigator` where it finds the class of a browser's window or worker. Others may have one as well. */
function asInBrowser<T>(work: () => T): T {
  const scope = globalThis as { Window?: unknown; WorkerGlobalScope?: unknown };
  if (scope.Window !== undefined || scope.WorkerGlobalScope !== undefined) return work();
  scope.Window = Object;
  try {
    return work();
  } finally {
    delete scope.Window;
  }
}
