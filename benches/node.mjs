// Times training steps in Node: answers lines as step.rs does. `node node.mjs ontrain|onnxruntime-web FOLDER`, in a project where both
// packages are installed.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { answers, onnxruntimeWeb, ontrain } from "./session.mjs";

const [which, folder] = process.argv.slice(2);

/** onnxruntime-web exports no training for Node, but the file for browsers works when it is given the engine's bytes. */
async function library() {
  const dist = join(process.cwd(), "node_modules/onnxruntime-web/dist");
  const library = await import(pathToFileURL(join(dist, "ort.training.wasm.mjs")).href);
  const { buffer, byteOffset, byteLength } = await readFile(join(dist, "ort-training-wasm-simd-threaded.wasm"));
  library.env.wasm.wasmBinary = buffer.slice(byteOffset, byteOffset + byteLength);
  library.env.wasm.wasmPaths = `${pathToFileURL(dist).href}/`;
  library.env.wasm.numThreads = 1;
  library.env.logLevel = "error";
  return library;
}

const load = async (name) => new Uint8Array(await readFile(join(folder, name)));
const session = which === "ontrain" ? ontrain(await import("ontrain"), load) : onnxruntimeWeb(await library(), load);
const answer = answers(await session);
for await (const line of createInterface({ input: process.stdin })) console.log(await answer(line));
process.exit(0);
