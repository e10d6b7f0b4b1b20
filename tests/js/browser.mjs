// A page of headless Chromium (CHROME_PATH) on files that this process serves on localhost. The page can use WebGPU: on the CPU
// by Chromium's own SwiftShader, which proves correctness and never speed, or on the machine's GPU if ONTRAIN_GPU is "hardware".

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

/** The folder that is served: this file lies in a folder of it. */
const PROJECT = fileURLToPath(new URL("..", import.meta.url));
const TYPES = { ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".html": "text/html" };

const HARDWARE = process.env.ONTRAIN_GPU === "hardware";
const FLAGS = [
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--enable-unsafe-webgpu",
  HARDWARE ? "--enable-features=Vulkan" : "--use-webgpu-adapter=swiftshader",
];

// Isolated from other origins a page gets the finer clock.
const HEADERS = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };

const pageOf = (script) => `<!doctype html><meta charset="utf-8"><title>ontrain</title><link rel="icon" href="data:,">
<script type="importmap">{ "imports": { "ontrain": "/node_modules/ontrain/dist/index.js" } }</script>
<script type="module">${script}
window.ready = true;</script>`;

/** What a request gets: the bytes, `undefined` for a file that is not there. */
async function respond(request, path, script, routes) {
  if (path === "/") return pageOf(script);
  const [prefix, route] = Object.entries(routes).find(([prefix]) => path.startsWith(prefix)) ?? [];
  if (route === undefined) return readFile(join(PROJECT, path)).catch(() => undefined);
  const parts = [];
  for await (const part of request) parts.push(part);
  return route(path.slice(prefix.length), Buffer.concat(parts), request.method);
}

/**
 * Opens a page that runs `script`, a module in which `ontrain` is the package installed in the project. `routes` answers
 * requests by the beginning of their path: `async (rest, body, method) => bytes`; any other path is a file of the project.
 */
export async function open(script, routes = {}) {
  const server = createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname));
    try {
      const body = await respond(request, path, script, routes);
      const type = path === "/" ? "text/html" : (TYPES[extname(path)] ?? "application/octet-stream");
      response.writeHead(body === undefined ? 404 : 200, { ...HEADERS, "content-type": type }).end(body);
    } catch (error) {
      response.writeHead(500).end(String(error));
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const browser = await chromium.launch({ executablePath: process.env.CHROME_PATH, args: FLAGS });
  const close = async () => {
    await browser.close();
    server.closeAllConnections();
    server.close();
  };
  try {
    const page = await browser.newPage();
    page.on("pageerror", (error) => console.error("page:", error));
    page.on("console", (line) => ["error", "warning"].includes(line.type()) && console.error("page:", line.text()));
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    await page.waitForFunction(() => window.ready);
    return { page, version: browser.version(), close };
  } catch (error) {
    await close();
    throw error;
  }
}
