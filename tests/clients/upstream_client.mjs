// Calls the tools of upstream_server.py through a bridge with the official JavaScript clients: `upstream_client.mjs URL MODULES`, where
// MODULES is a folder with what js/package.json names. upstream_client.py starts it.
import { createRequire } from "node:module";
import path from "node:path";
import { isDeepStrictEqual } from "node:util";

const [url, modules] = process.argv.slice(2);
const require = createRequire(path.resolve(modules, "package.json"));
const today = require("@modelcontextprotocol/client");
const before = {
  ...require("@modelcontextprotocol/sdk/client/index.js"),
  ...require("@modelcontextprotocol/sdk/client/streamableHttp.js"),
};

let failed = 0;
function check(what, good, seen) {
  if (!good) failed += 1;
  console.log((good ? "ok   " : "FAIL ") + what + (good ? "" : `: ${seen instanceof Error ? seen : JSON.stringify(seen)}`));
}

for (const [name, { Client, StreamableHTTPClientTransport }, mode, revision] of [
  ["sdk", before, undefined, "2025-11-25"],
  ["client", today, "legacy", "2025-11-25"],
  ["client", today, "auto", "2026-07-28"],
]) {
  const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode } });
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  const spoken = client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion;
  check(`${name} speaks ${revision}`, spoken === revision, spoken);
  const call = (tool, args) => client.callTool({ name: tool, arguments: args });
  const { tools } = await client.listTools();
  const names = tools.map((tool) => tool.name).sort();
  check("the allowed tools are listed that the server has", isDeepStrictEqual(names, ["comment", "ended", "fail", "search", "wait"]), names);
  let seen = await call("search", { query: "y", limit: 1 });
  check("a tool answers", isDeepStrictEqual(seen.structuredContent, { found: ["y-0"] }) && !seen.isError, seen);
  seen = await call("comment", { issue: "CD-2", body: "b" });
  check("the credential is not in an answer", seen.content?.[0]?.text === "CD-2: b ([credential tracker])", seen);
  seen = await call("comment", { issue: "cd", body: "b" });
  check("a call that breaks a rule is rejected", seen.isError && seen.structuredContent?.rule === "pattern", seen);
  seen = await call("drop", {});
  check("a call of a tool that is not allowed is rejected", seen.isError && seen.structuredContent?.rule === "notAllowed", seen);
  seen = await call("fail", {});
  check("a tool that fails is a failed call", seen.isError && JSON.stringify(seen.content).includes("no such issue"), seen);
  await client.close();
}
process.exit(failed ? 1 : 0);
