// Tests the official JavaScript clients of MCP with `spillway bridge`: `bridge_client.mjs BINARY MODULES`, where BINARY is spillway, and
// MODULES is a folder with what js/package.json names.
//
// @modelcontextprotocol/client is of today, and speaks both revisions of the protocol. @modelcontextprotocol/sdk is the one before it,
// which most programs have.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { isDeepStrictEqual } from "node:util";

import { becomes, withBridge } from "./bridge.mjs";

const [binary, modules] = process.argv.slice(2);
const require = createRequire(path.resolve(modules, "package.json"));
const today = require("@modelcontextprotocol/client");
const before = {
  ...require("@modelcontextprotocol/sdk/client/index.js"),
  ...require("@modelcontextprotocol/sdk/client/streamableHttp.js"),
};

// A call would last this many seconds, and its process is found by them.
const [CANCELLED, LEFT] = ["63.7", "64.7"];
// Why: see bridge_client.py.
const IGNORES_CANCEL = ["2025-11-25"];

let failed = 0;
function check(what, good, seen) {
  if (!good) failed += 1;
  console.log((good ? "ok   " : "FAIL ") + what + (good ? "" : `: ${seen instanceof Error ? seen : JSON.stringify(seen)}`));
}

function asleep(seconds) {
  return fs.readdirSync("/proc").some((pid) => {
    try {
      return /^\d+$/.test(pid) && fs.readFileSync(`/proc/${pid}/cmdline`, "latin1") === `sleep\0${seconds}\0`;
    } catch {
      return false;
    }
  });
}

const told = (answer, ...names) => names.map((name) => answer.structuredContent?.[name]);

async function calls(client, call, revision) {
  const { tools } = await client.listTools();
  check("there are three tools", isDeepStrictEqual(tools.map((tool) => tool.name), ["list_programs", "help", "execute"]), tools);

  const execute = (program, args, options) => call("execute", { program, args }, options);
  let seen = await call("list_programs", {});
  const names = seen.structuredContent?.programs?.map((program) => program.name);
  check("the programs are listed", isDeepStrictEqual(names, ["say", "shell"]) && !seen.isError, seen);
  seen = await call("help", { program: "say" });
  const [text, schema] = told(seen, "text", "argsSchema");
  check("a program is explained, with a schema of its arguments",
    text === "Help of say." && schema?.required?.[0] === "one" && !seen.isError, seen);
  seen = await execute("say", { one: "$(id); `id` 'x' é", two: "-rf" });
  check("a program runs with its arguments as they are",
    isDeepStrictEqual(told(seen, "status", "stdout"), ["ok", "$(id); `id` 'x' é|--two=-rf|"]) && !seen.isError, seen);
  seen = await execute("shell", { script: "echo out; echo err >&2; exit 3" });
  check("a program that fails is a failed call with its code and output",
    isDeepStrictEqual(told(seen, "status", "exitCode", "stdout", "stderr"), ["nonzero", 3, "out\n", "err\n"]) && seen.isError, seen);

  for (const [what, answer, field, rule] of [
    ["without a required argument", execute("say", {}), "one", "required"],
    ["with an option in place of a value", execute("say", { one: "-rf" }), "one", "leadingDash"],
    ["with an argument of another type", execute("say", { one: 1 }), "one", "type"],
    ["with an unknown argument", execute("say", { one: "x", three: "y" }), "args", "unknown"],
    ["of an unknown program", execute("none", {}), undefined, "unknownProgram"],
    ["with an unknown word for a tool", call("execute", { program: "say", arg: {} }), undefined, "arguments"],
    ["for the help of an unknown program", call("help", { program: "none" }), undefined, "unknownProgram"],
  ]) {
    seen = await answer;
    const rejected = isDeepStrictEqual(told(seen, "status", "field", "rule"), ["rejected", field, rule]);
    check(`a call ${what} is a failed call that says why`, rejected && told(seen, "message")[0] && seen.isError, seen);
  }
  seen = await call("run", {}).catch((error) => error);
  check("an unknown tool is an error of the protocol", seen.code === -32602, seen);

  // The first ends last.
  const answers = await Promise.all([...Array(6).keys()].map((n) => execute("shell", { script: `sleep 0.${6 - n}; echo ${n}` })));
  const outputs = answers.map((answer) => told(answer, "stdout")[0]);
  check("calls at once do not mix", isDeepStrictEqual(outputs, ["0\n", "1\n", "2\n", "3\n", "4\n", "5\n"]), answers);

  const cancel = new AbortController();
  const sleeping = execute("shell", { script: `sleep ${CANCELLED}; true` }, { signal: cancel.signal }).catch((error) => error);
  const began = await becomes(() => asleep(CANCELLED));
  cancel.abort();
  seen = await sleeping;
  if (IGNORES_CANCEL.includes(revision)) {
    const ended = await becomes(() => !asleep(CANCELLED), 3000);
    check("LIMIT: a call that is cancelled runs on", began && !ended, "it ended: IGNORES_CANCEL is wrong");
  } else {
    check("a call that is cancelled ends its program", began && (await becomes(() => !asleep(CANCELLED))), seen);
  }
  seen = await execute("say", { one: "x" });
  check("the client goes on after that", told(seen, "stdout")[0] === "x|" && !seen.isError, seen);
  execute("shell", { script: `sleep ${LEFT}; true` }).catch(() => {});
  check("a program runs when its client leaves", await becomes(() => asleep(LEFT)), "it does not run");
}

await withBridge(binary, async (url) => {
  for (const [name, { Client, StreamableHTTPClientTransport }, mode, revision] of [
    ["sdk", before, undefined, "2025-11-25"],
    ["client", today, "legacy", "2025-11-25"],
    ["client", today, "auto", "2026-07-28"],
  ]) {
    const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode } });
    const transport = new StreamableHTTPClientTransport(new URL(url));
    await client.connect(transport);
    const spoken = client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion;
    console.log(`     @modelcontextprotocol/${name}, revision ${spoken}, ${JSON.stringify(client.getServerVersion())}`);
    check("it is greeted in this revision, with instructions",
      spoken === revision && client.getServerVersion()?.name === "spillway-bridge" && client.getInstructions(), spoken);
    // The older one has a schema of the answer in between.
    const between = name === "sdk" ? [undefined] : [];
    const call = (tool, args, options) => client.callTool({ name: tool, arguments: args }, ...between, options);
    await calls(client, call, revision);
    await client.close();
    check("no program outlives its client", await becomes(() => !asleep(CANCELLED) && !asleep(LEFT)), "they run on");
  }
});
process.exit(failed ? 1 : 0);
