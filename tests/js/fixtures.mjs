// Fixtures, in Node.

import { readFile } from "node:fs/promises";
import { join } from "node:path";

const folder = process.env.ONTRAIN_FIXTURES;
if (folder === undefined) throw new Error("ONTRAIN_FIXTURES must name the folder tests/fixtures");

/** A file of MNIST; the folder is ONTRAIN_MNIST. */
export const mnist = async (path) => new Uint8Array(await readFile(join(process.env.ONTRAIN_MNIST, path)));

export const read = async (path) => new Uint8Array(await readFile(join(folder, path)));
