// Runs in a page of headless Chromium, on the installed package as a server sends it: the scenario on wasm, whose losses are
// compared with Node's bit by bit, and on webgpu; then what holds on each device and between them. Exits with 1 when something
// differs or a check fails.

import assert from "node:assert/strict";

import * as ontrain from "ontrain";
import { open } from "./browser.mjs";
import { mnist, read } from "./fixtures.mjs";
import { scenario } from "./scenario.mjs";

const PAGE = `
  import * as ontrain from "ontrain";
  import * as devices from "/js/devices.mjs";
  import { scenario } from "/js/scenario.mjs";
  const read = async (path) => {
    const response = await fetch((path.startsWith("mnist/") ? "/" : "/fixtures/") + path);
    if (!response.ok) throw new Error(path + ": " + response.status);
    return new Uint8Array(await response.arrayBuffer());
  };
  window.scenario = async (device) => {
    await ontrain.init({ device });
    return scenario(ontrain, read);
  };
  window.onEach = (name, device) => devices.ON_EACH[name](read, device);
  window.check = (name, ...given) => devices[name](read, ...given);
  window.names = Object.keys(devices.ON_EACH);
  window.refuse = async () => {
    try {
      await ontrain.CheckpointState.load(new Uint8Array(10));
      return "nothing";
    } catch (error) {
      return [error.name, error.kind, error instanceof ontrain.OntrainError];
    }
  };
`;

const WORKER = `
  import { init } from "/node_modules/ontrain/dist/index.js";
  postMessage(await init({ device: "auto" }));
`;

const { page, version, close } = await open(PAGE, { "/fixtures/": read, "/mnist/": mnist, "/worker.mjs": async () => WORKER });
console.log(`Chromium ${version}`);
let [passed, failed] = [0, 0];
async function test(name, work) {
  const start = performance.now();
  try {
    const found = await work();
    passed++;
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    console.log(`ok ${name} (${seconds} s)${found === undefined || found === null ? "" : `: ${JSON.stringify(found)}`}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${name}: ${error.stack ?? error}`);
  }
}

const check = (name, ...given) => page.evaluate(([name, given]) => window.check(name, ...given), [name, given]);
await test("a cold start on the GPU", () => check("coldStart"));
await test("a LoadError is one", async () => {
  assert.deepEqual(await page.evaluate(() => window.refuse()), ["LoadError", "Load", true]);
});
await test("the scenario on wasm, each loss as in Node", async () => {
  const [inNode, inPage] = [await scenario(ontrain, read), await page.evaluate(() => window.scenario("wasm"))];
  assert.deepEqual(inPage, inNode);
  return `${Object.keys(inPage).length} runs`;
});
await test("the scenario on webgpu", async () => {
  return `${Object.keys(await page.evaluate(() => window.scenario("webgpu"))).length} runs`;
});
for (const name of await page.evaluate(() => window.names)) {
  await test(`on wasm and on webgpu, with one result: ${name}`, async () => {
    const run = (device) => page.evaluate(([name, device]) => window.onEach(name, device), [name, device]);
    const onWasm = await run("wasm");
    assert.deepEqual(await run("webgpu"), onWasm);
    return onWasm;
  });
}
await test("a steady step makes no GPU object and maps nothing", () => check("steadyState"));
await test("the demo's network walks one path on both devices", () => check("samePath", 50));
await test("a lost device loses nothing that was saved", () => check("lostDevice"));
await test("opening devices", () => check("opening"));
await test("a worker of the page has the GPU as well", async () => {
  const chosen = await page.evaluate(() => new Promise((resolve, reject) => {
    const worker = new Worker("/worker.mjs", { type: "module" });
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = (event) => reject(new Error(event.message));
  }));
  assert.equal(chosen.name, "webgpu", chosen.fallback);
});

await close();
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
