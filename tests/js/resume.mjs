// `node resume.mjs CHECKPOINT FROM STEPS`: goes on training reg_mse from a checkpoint, in a process of its own, and prints
// the losses as JSON.

import { readFile } from "node:fs/promises";

import * as ontrain from "ontrain";
import { read } from "./fixtures.mjs";
import { artifactsOf, golden, session, train } from "./scenario.mjs";

const [path, from, steps] = process.argv.slice(2);
const data = await golden(read, "reg_mse");
const run = data.trace.runs.adamw;
const artifacts = await artifactsOf(ontrain, data, run, "ontrain");
const resumed = await session(ontrain, { ...artifacts, checkpoint: await readFile(path) });
resumed.optimizer.setLearningRate(run.lr);
console.log(JSON.stringify(await train(resumed, data, Number(steps), Number(from))));
