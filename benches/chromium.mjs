// Times training steps in a page of headless Chromium (CHROME_PATH): answers lines as step.rs does. `node chromium.mjs WHAT
// FOLDER`, in a project where the packages are installed; WHAT is a key of SESSIONS.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { open } from "../js/browser.mjs";

const [what, folder] = process.argv.slice(2);

const PAGE = `
  import { answers, onnxruntimeWeb, ontrain } from "/bench/session.mjs";
  import { jaxJs, tfjs } from "/bench/peers.mjs";
  const load = async (name) => {
    const response = await fetch("/case/" + name);
    if (!response.ok) throw new Error(name + ": " + response.status);
    return new Uint8Array(await response.arrayBuffer());
  };
  const script = (src) => new Promise((loaded, failed) => {
    const element = Object.assign(document.createElement("script"), { src, onload: loaded });
    element.onerror = () => failed(new Error(src + " cannot be loaded"));
    document.head.append(element);
  });
  const onnxruntime = async () => {
    const dist = location.origin + "/node_modules/onnxruntime-web/dist/";
    const library = await import(dist + "ort.training.wasm.min.mjs");
    library.env.wasm.wasmPaths = dist;
    library.env.wasm.numThreads = 1;
    library.env.logLevel = "error";
    return library;
  };
  const tensorflow = async () => {
    await script("/node_modules/@tensorflow/tfjs/dist/tf.min.js");
    await script("/node_modules/@tensorflow/tfjs-backend-webgpu/dist/tf-backend-webgpu.min.js");
    return window.tf;
  };
  const SESSIONS = {
    ontrain: async () => ontrain(await import("ontrain"), load),
    "ontrain-webgpu": async () => ontrain(await import("ontrain"), load, "webgpu"),
    "onnxruntime-web": async () => onnxruntimeWeb(await onnxruntime(), load),
    "tfjs-webgpu": async () => tfjs(await tensorflow(), load),
    "jax-js-webgpu": async () => jaxJs(await import("/node_modules/@jax-js/jax/dist/index.js"), load),
  };
  let answer;
  window.answer = async (line) => {
    answer ??= SESSIONS["${what}"]().then(answers);
    return (await answer)(line);
  };
`;

const { page, close } = await open(PAGE, { "/case/": (name) => readFile(join(folder, name)) });
try {
  for await (const line of createInterface({ input: process.stdin })) {
    console.log(await page.evaluate((given) => window.answer(given), line));
  }
} finally {
  await close();
}
process.exit(0);
