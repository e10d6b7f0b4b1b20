// Runs the scenario in a page of headless Chromium, on the installed package as a server sends it, and compares every
// loss with Node's, bit by bit. Exits with 1 when something differs or a check fails.

import assert from "node:assert/strict";

import * as ontrain from "ontrain";
import { open } from "./browser.mjs";
import { read } from "./fixtures.mjs";
import { scenario } from "./scenario.mjs";

const PAGE = `
  import * as ontrain from "ontrain";
  import { scenario } from "/js/scenario.mjs";
  const read = async (path) => {
    const response = await fetch("/fixtures/" + path);
    if (!response.ok) throw new Error(path + ": " + response.status);
    return new Uint8Array(await response.arrayBuffer());
  };
  window.run = () => scenario(ontrain, read);
  window.refuse = async () => {
    try {
      await ontrain.CheckpointState.load(new Uint8Array(10));
      return "nothing";
    } catch (error) {
      return [error.name, error.kind, error instanceof ontrain.OntrainError];
    }
  };
`;

let failed = false;
const { page, version, close } = await open(PAGE, { "/fixtures/": read });
try {
  const inNode = await scenario(ontrain, read);
  const inPage = await page.evaluate(() => window.run());
  assert.deepEqual(inPage, inNode);
  console.log(`Chromium ${version}: ${Object.keys(inPage).length} runs, each loss as in Node`);
  assert.deepEqual(await page.evaluate(() => window.refuse()), ["LoadError", "Load", true]);
} catch (error) {
  failed = true;
  console.error(error);
} finally {
  await close();
}
console.log(failed ? "0 passed, 1 failed" : "1 passed, 0 failed");
process.exitCode = failed ? 1 : 0;
