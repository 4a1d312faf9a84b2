// Runs the server scenarios of the official conformance suite of MCP against `spillway bridge`, in both revisions of the protocol:
// `bridge_conformance.mjs BINARY MODULES`, with the arguments of bridge_client.mjs.
//
// Each check of each scenario must pass, except the checks below. An excepted check that passes or that is never made is a failure too, so
// that the table stays true. The scenarios of optional extensions (tasks, skills) do not run.
import { spawn } from "node:child_process";
import fs from "node:fs";
import path from "node:path";

import { withBridge } from "./bridge.mjs";

const [binary, modules] = process.argv.slice(2);

// Scenarios that test the bridge: each has at least one check that passes, in these revisions.
const APPLIES = {
  "2025-11-25": ["server-initialize", "ping", "tools-list", "dns-rebinding-protection"],
  "2026-07-28": [
    "server-stateless",
    "tools-list",
    "http-header-validation",
    "dns-rebinding-protection",
    "caching",
    "server-sse-multiple-streams",
    "sep-2164-resource-not-found",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
  ],
};

// Why, and which: SCENARIO:CHECK, or a name that is both.
const EXCEPTIONS = {
  "it calls a tool of the suite's own test server, and the bridge has three fixed tools": [
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "tools-call-sampling",
    "tools-call-elicitation",
    "json-schema-2020-12:json-schema-2020-12-tool-found",
    "elicitation-sep1034-defaults:elicitation-sep1034-general",
    "elicitation-sep1330-enums:elicitation-sep1330-general",
    "server-stateless:sep-2575-server-rejects-undeclared-capability",
    "server-stateless:sep-2575-missing-capability-http-400",
    "server-stateless:sep-2575-http-server-no-independent-requests-on-stream",
    "server-stateless:sep-2575-server-no-log-without-loglevel",
  ],
  "it calls a tool that asks the client for input, and no tool of the bridge does": [
    "input-required-result-basic-elicitation:sep-2322-elicitation-incomplete",
    "input-required-result-basic-sampling:sep-2322-sampling-incomplete",
    "input-required-result-basic-list-roots:sep-2322-list-roots-incomplete",
    "input-required-result-request-state:sep-2322-request-state-incomplete",
    "input-required-result-multiple-input-requests:sep-2322-multiple-inputs-incomplete",
    "input-required-result-multi-round:sep-2322-multi-round-r1",
    "input-required-result-missing-input-response:sep-2322-missing-response-rerequests",
    "input-required-result-result-type:sep-2322-result-type-included",
    "input-required-result-tampered-state:sep-2322-reject-tampered-state",
    "input-required-result-capability-check:sep-2322-respect-client-capabilities",
    "input-required-result-ignore-extra-params:sep-2322-ignore-unexpected-params",
  ],
  "it needs a tool with an argument that is repeated in a header, and no tool of the bridge has one": [
    "http-custom-header-server-validation:sep-2243-server-no-xmcp-tool",
    "http-custom-header-server-validation:sep-2243-server-decode-base64",
    "http-custom-header-server-validation:sep-2243-server-validate-param-match",
    "http-custom-header-server-validation:sep-2243-server-reject-invalid-param-chars",
    "http-custom-header-server-validation:sep-2243-server-reject-param-mismatch",
  ],
  "the bridge has no resources": [
    "resources-list",
    "resources-read-text",
    "resources-read-binary",
    "resources-templates-read",
    "resources-subscribe",
    "resources-unsubscribe",
    "sep-2164-resource-not-found:sep-2164-error-code",
    "sep-2164-resource-not-found:sep-2164-data-uri",
    "caching:sep-2549-resources-list-caching-hints",
    "caching:sep-2549-resources-templates-list-caching-hints",
    "caching:sep-2549-resources-read-caching-hints",
  ],
  "the bridge has no prompts": [
    "prompts-list",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-embedded-resource",
    "prompts-get-with-image",
    "caching:sep-2549-prompts-list-caching-hints",
    "input-required-result-non-tool-request:sep-2322-non-tool-incomplete",
  ],
  "the bridge completes no arguments of prompts": ["completion-complete"],
  "the bridge sends no logs to clients": ["logging-set-level", "tools-call-with-logging"],
  "the bridge has no sessions, and answers without a stream": [
    "server-sse-polling:server-sse-polling-session",
    "server-sse-multiple-streams:server-sse-multiple-streams-session",
  ],
  "the tools of the bridge never change, so that there is nothing to subscribe to": [
    "server-stateless:sep-2575-server-sends-subscription-ack",
    "server-stateless:sep-2575-server-tags-subscription-id",
    "server-stateless:sep-2575-server-honors-notification-filter",
    "server-stateless:sep-2575-server-sends-prompts-list-changed-on-subscription",
    "server-stateless:sep-2575-server-sends-tools-list-changed-on-subscription",
  ],
  "it comes from a page on this machine, and the bridge answers no page": ["dns-rebinding-protection:localhost-host-valid-accepted"],
};

// The suite imports a function that Node 20 does not have. It does not call it here.
const OLD_NODE = `import { register } from "node:module";
register("data:text/javascript," + encodeURIComponent(\`
  const fs = "data:text/javascript,export * from 'node:fs'; export const globSync = undefined";
  export const resolve = (name, context, next) => name === "fs" && context.parentURL?.includes("/conformance/dist/")
    ? { url: fs, format: "module", shortCircuit: true } : next(name, context);\`));`;

let failed = 0;
function fail(text) {
  failed += 1;
  console.log(`FAIL ${text}`);
}

/** The checks of all scenarios, each with its scenario. */
async function run(url, revision, folder) {
  const suite = path.resolve(modules, "node_modules/@modelcontextprotocol/conformance/dist/index.js");
  const older = fs.globSync ? [] : ["--import", `data:text/javascript,${encodeURIComponent(OLD_NODE)}`];
  const words = [...older, suite, "server", "--url", url, "--suite", "all", "--spec-version", revision, "--output-dir", folder];
  const log = `${folder}.log`;
  const output = fs.openSync(log, "w");
  const child = spawn(process.execPath, words, { stdio: ["ignore", output, output] });
  await new Promise((resolve, reject) => child.once("exit", resolve).once("error", reject));
  const said = fs.readFileSync(log, "utf8");
  if (!/^Total: /m.test(said)) throw new Error(`the suite did not end:\n${said.slice(-2000)}`);
  return fs.readdirSync(folder).flatMap((name) => {
    const scenario = name.replace(/^server-/, "").replace(/-\d{4}-\d\d-\d\dT[\d-]+Z$/, "");
    const checks = JSON.parse(fs.readFileSync(path.join(folder, name, "checks.json"), "utf8"));
    return checks.map((check) => ({ ...check, scenario }));
  });
}

const excepted = new Map(Object.entries(EXCEPTIONS).flatMap(([why, checks]) =>
  checks.map((check) => [check.includes(":") ? check : `${check}:${check}`, why])));
const seen = new Set();

await withBridge(binary, async (url, folder) => {
  for (const [revision, applies] of Object.entries(APPLIES)) {
    const checks = await run(url, revision, path.join(folder, revision));
    const passed = new Map();
    for (const { scenario, id, status, errorMessage } of checks) {
      const name = `${scenario}:${id}`;
      if (status === "INFO") continue;
      if (excepted.has(name)) {
        seen.add(name);
        if (status === "SUCCESS") fail(`${revision} ${name} passes, and is in the table of exceptions`);
      } else if (status === "SUCCESS") {
        // Nearly every scenario has this check, also one that could test nothing else.
        if (id !== "wire-schema-valid") passed.set(scenario, (passed.get(scenario) ?? 0) + 1);
      } else {
        fail(`${revision} ${name}: ${status} ${errorMessage ?? ""}`);
      }
    }
    for (const scenario of applies) {
      if (passed.has(scenario)) console.log(`ok   ${revision} ${scenario} (checks that pass: ${passed.get(scenario)})`);
      else fail(`${revision} ${scenario}: no check passed`);
    }
    for (const scenario of passed.keys()) {
      if (!applies.includes(scenario)) fail(`${revision} ${scenario} passes, and is in no table`);
    }
  }
});
for (const name of excepted.keys()) if (!seen.has(name)) fail(`${name} is in the table of exceptions, and was never made`);
if (!failed) console.log(`ok   the ${excepted.size} excepted checks do not pass, and all other checks pass`);
process.exit(failed ? 1 : 0);
