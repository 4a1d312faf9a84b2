// A bridge for the tests of JavaScript clients.
import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

// Longer than anything takes on a busy machine, in milliseconds.
const GENEROUS = 30_000;

/** Whether something becomes so. */
export async function becomes(holds, milliseconds = GENEROUS) {
  for (const end = Date.now() + milliseconds; Date.now() < end; await sleep(50)) if (holds()) return true;
  return holds();
}

/** Runs a bridge in a temporary folder; `use` gets its address, and the folder. */
export async function withBridge(binary, use) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "bridge-"));
  const definitions = path.join(folder, "definitions");
  fs.cpSync(new URL("definitions", import.meta.url), definitions, { recursive: true });
  const log = path.join(folder, "stderr");
  const words = ["bridge", "--definitions", definitions, "--listen", "127.0.0.1:0", "--audit-file", path.join(folder, "audit")];
  const child = spawn(path.resolve(binary), words, { cwd: folder, stdio: ["ignore", "ignore", fs.openSync(log, "w")] });
  const ended = new Promise((resolve) => child.once("exit", resolve).once("error", resolve));
  try {
    const address = () => fs.readFileSync(log, "utf8").match(/address=(127\.0\.0\.1:\d+)/)?.[1];
    await becomes(() => address() || child.exitCode !== null);
    if (!address()) throw new Error(`the bridge does not listen: ${fs.readFileSync(log, "utf8")}`);
    return await use(`http://${address()}/mcp`, folder);
  } finally {
    child.kill();
    await ended;
    fs.rmSync(folder, { recursive: true });
  }
}
