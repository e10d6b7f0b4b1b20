// Runs the scenario in a page of headless Chromium, on the installed package as a server sends it, and compares every
// loss with Node's, bit by bit. Exits with 1 when something differs or a check fails.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

import * as ontrain from "ontrain";
import { chromium } from "playwright-core";
import { read } from "./fixtures.mjs";
import { scenario } from "./scenario.mjs";

const PROJECT = fileURLToPath(new URL("..", import.meta.url));
const TYPES = { ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".html": "text/html" };

const PAGE = `<!doctype html><meta charset="utf-8"><title>ontrain</title><link rel="icon" href="data:,">
<script type="importmap">{ "imports": { "ontrain": "/node_modules/ontrain/dist/index.js" } }</script>
<script type="module">
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
</script>`;

const server = createServer(async (request, response) => {
  const path = normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname));
  try {
    let body;
    if (path === "/") body = PAGE;
    else if (path.startsWith("/fixtures/")) body = await read(path.slice("/fixtures/".length));
    else body = await readFile(join(PROJECT, path));
    response.writeHead(200, { "content-type": path === "/" ? "text/html" : (TYPES[extname(path)] ?? "application/octet-stream") });
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));

let failed = false;
const browser = await chromium.launch({ executablePath: process.env.CHROME_PATH, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  page.on("pageerror", (error) => console.error("page:", error));
  page.on("console", (line) => console.log("page:", line.text()));
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.waitForFunction(() => "run" in window);
  const inNode = await scenario(ontrain, read);
  const inPage = await page.evaluate(() => window.run());
  assert.deepEqual(inPage, inNode);
  console.log(`Chromium ${browser.version()}: ${Object.keys(inPage).length} runs, each loss as in Node`);
  assert.deepEqual(await page.evaluate(() => window.refuse()), ["LoadError", "Load", true]);
} catch (error) {
  failed = true;
  console.error(error);
} finally {
  await browser.close();
  server.close();
}
console.log(failed ? "0 passed, 1 failed" : "1 passed, 0 failed");
process.exitCode = failed ? 1 : 0;
