// Times training steps in a page of headless Chromium (CHROME_PATH): answers lines as step.rs does.
// `node chromium.mjs ontrain|onnxruntime-web FOLDER`, in a project where both packages and playwright-core are installed.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [which, folder] = process.argv.slice(2);
const TYPES = { ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".html": "text/html" };

const PAGE = `<!doctype html><meta charset="utf-8"><title>bench</title><link rel="icon" href="data:,">
<script type="importmap">{ "imports": { "ontrain": "/node_modules/ontrain/dist/index.js" } }</script>
<script type="module">
  import { open } from "/bench/session.mjs";
  const load = async (name) => {
    const response = await fetch("/case/" + name);
    if (!response.ok) throw new Error(name + ": " + response.status);
    return new Uint8Array(await response.arrayBuffer());
  };
  const onnxruntimeWeb = async () => {
    const dist = location.origin + "/node_modules/onnxruntime-web/dist/";
    const library = await import(dist + "ort.training.wasm.min.mjs");
    library.env.wasm.wasmPaths = dist;
    library.env.wasm.numThreads = 1;
    library.env.logLevel = "error";
    return library;
  };
  let answer;
  window.answer = async (line) => {
    answer ??= open("${which}", "${which}" === "ontrain" ? await import("ontrain") : await onnxruntimeWeb(), load);
    return (await answer)(line);
  };
</script>`;

// Isolated from other origins a page gets the finer clock.
const HEADERS = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };

const server = createServer(async (request, response) => {
  const path = normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname));
  try {
    let body;
    if (path === "/") body = PAGE;
    else if (path.startsWith("/case/")) body = await readFile(join(folder, path.slice("/case/".length)));
    else body = await readFile(join(process.cwd(), path));
    const type = path === "/" ? "text/html" : (TYPES[extname(path)] ?? "application/octet-stream");
    response.writeHead(200, { ...HEADERS, "content-type": type });
    response.end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));

const browser = await chromium.launch({ executablePath: process.env.CHROME_PATH, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  page.on("pageerror", (error) => console.error("page:", error));
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.waitForFunction(() => "answer" in window);
  for await (const line of createInterface({ input: process.stdin })) {
    console.log(await page.evaluate((given) => window.answer(given), line));
  }
} finally {
  await browser.close();
  server.close();
}
process.exit(0);
