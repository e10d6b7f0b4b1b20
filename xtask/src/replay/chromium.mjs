// Does jobs in a page of Chromium: `node chromium.mjs DEVICE`, otherwise as worker.mjs.

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { open } from "../js/browser.mjs";

const SCRIPT = `
  import { start, work } from "/replay/jobs.mjs";
  const file = async (name) => new Uint8Array(await (await fetch("/job/job." + name)).arrayBuffer());
  const put = (name, body) => fetch("/job/answer." + name, { method: "PUT", body });
  window.start = start;
  window.work = async () => {
    const answer = await work({ text: new TextDecoder().decode(await file("json")), bytes: await file("bin") });
    await put("bin", answer.bytes);
    await put("json", answer.text);
  };
`;

let folder;
const job = (name, body, method) => {
  const path = join(folder, name);
  return method === "PUT" ? writeFile(path, body).then(() => "") : readFile(path);
};

const { page, close } = await open(SCRIPT, { "/job/": job });
// A page that crashed or is gone answers nothing any more.
page.on("crash", () => process.exit(1));
await page.evaluate((device) => window.start(device), process.argv[2]);
for await (const line of createInterface({ input: process.stdin })) {
  folder = line;
  await page.evaluate(() => window.work());
  console.log("done");
}
await close();
process.exit(0);
