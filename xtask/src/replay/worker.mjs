// Does jobs in Node: `node worker.mjs DEVICE`. Each line of standard input is a folder with a job (job.json, job.bin); the
// answer goes into the same folder (answer.json, answer.bin), then a line is printed.

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { start, work } from "./jobs.mjs";

const [device] = process.argv.slice(2);
if (device === "webgpu") {
  // Node has no WebGPU of its own; the package that brings Chromium's is a program's to choose.
  const { create, globals } = await import("webgpu");
  Object.assign(globalThis, globals);
  Object.defineProperty(globalThis, "navigator", { value: { gpu: create([]) }, configurable: true });
}
await start(device);
for await (const folder of createInterface({ input: process.stdin })) {
  const text = await readFile(join(folder, "job.json"), "utf8");
  const answer = await work({ text, bytes: await readFile(join(folder, "job.bin")) });
  await writeFile(join(folder, "answer.bin"), answer.bytes);
  await writeFile(join(folder, "answer.json"), answer.text);
  console.log("done");
}
