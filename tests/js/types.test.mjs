// The declarations, as a user's strict compiler reads them.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const consumer = fileURLToPath(new URL("consumer.ts", import.meta.url));

function compile(file, ...options) {
  const tsc = process.env.ONTRAIN_TSC;
  assert.ok(tsc, "ONTRAIN_TSC must name the script of TypeScript's compiler");
  const strict = ["--strict", "--noEmit", "--exactOptionalPropertyTypes", "--target", "es2022"];
  const { status, stdout } = spawnSync(process.execPath, [tsc, ...strict, ...options, file], { encoding: "utf8" });
  return { status, stdout };
}

for (const [module, resolution] of [["nodenext", "nodenext"], ["esnext", "bundler"]]) {
  test(`a consumer compiles with --moduleResolution ${resolution}, declarations checked`, () => {
    const { status, stdout } = compile(consumer, "--module", module, "--moduleResolution", resolution, "--lib", "es2022,dom");
    assert.equal(status, 0, stdout);
  });
}

test("what is wrong does not compile", () => {
  const wrong = fileURLToPath(new URL("wrong.ts", import.meta.url));
  writeFileSync(wrong, `
    import { generateArtifacts, init, Tensor, type OntrainError } from "ontrain";
    await generateArtifacts(new Uint8Array(), { loss: "MSELoss" });
    await generateArtifacts(new Uint8Array(), { requiresGrad: ["*"], loss: "MSE" });
    new Tensor("float", [1]);
    export const code = (e: OntrainError): number => (e.kind === "Lode" ? 1 : 0);
    await init({ device: "cuda" });
  `);
  const { status, stdout } = compile(wrong, "--module", "nodenext", "--moduleResolution", "nodenext", "--lib", "es2022,dom");
  assert.notEqual(status, 0);
  assert.deepEqual([...stdout.matchAll(/wrong\.ts\((\d+),/g)].map((m) => m[1]), ["3", "4", "5", "6", "7"], stdout);
});
