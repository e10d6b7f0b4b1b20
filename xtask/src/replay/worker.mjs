// Does jobs in Node: `node worker.mjs DEVICE`. Each line of standard input is a folder with a job (job.json, job.bin); the
// answer goes into the same folder (answer.json, answer.bin), then a line is printed.

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { start, work } from "./jobs.mjs";

await start(process.argv[2]);
for await (const folder of createInterface({ input: process.stdin })) {
  const text = await readFile(join(folder, "job.json"), "utf8");
  const answer = await work({ text, bytes: await readFile(join(folder, "job.bin")) });
  await writeFile(join(folder, "answer.bin"), answer.bytes);
  await writeFile(join(folder, "answer.json"), answer.text);
  console.log("done");
}
