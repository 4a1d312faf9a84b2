"""Tests a bridge in front of a server by the official Python SDK, with the official clients: `upstream_client.py BINARY MODULES`.

BINARY is spillway, and MODULES a folder with what js/package.json names. The server is upstream_server.py, once as it is and once with the
older revision of the protocol alone. The Python client calls it through the bridge, and upstream_client.mjs does.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

from mcp import Client

# Longer than anything takes on a busy machine.
GENEROUS = 60
TOKEN = "s3cret-tracker-token"
HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = """url: {url}
credentialsRef: {{name: tracker}}
tools:
  - {{name: search}}
  - name: comment
    arguments:
      - {{name: issue, pattern: "[A-Z]+-[0-9]+", required: true}}
      - {{name: body, multiline: true, maxLength: 100, required: true}}
  - {{name: fail}}
  - {{name: wait, timeoutSeconds: 30}}
  - {{name: ended}}
  - {{name: gone}}
"""

failed = 0


def check(what, good, seen):
    global failed
    failed += not good
    print(("ok   " if good else "FAIL ") + what + ("" if good else f": {seen}"), flush=True)


def until(what, holds):
    end = time.monotonic() + GENEROUS
    while not (value := holds()):
        assert time.monotonic() < end, f"waited too long: {what}"
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def running(words, **options):
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def content(file):
    with contextlib.suppress(OSError), open(file) as opened:
        return opened.read()
    return ""


@contextlib.contextmanager
def bridge(binary, folder, more):
    """The address of a bridge in front of a server, and its audit log."""
    address, log, audit, server = (os.path.join(folder, name) for name in ("address", "stderr", "audit", "server"))
    with open(os.path.join(folder, "token"), "w") as file:
        file.write(TOKEN)
    words = [sys.executable, os.path.join(HERE, "upstream_server.py"), TOKEN, address, *more]
    with open(server, "wb") as errors, running(words, stderr=errors):
        url = until("the server listens", lambda: content(address))
        with open(os.path.join(folder, "upstream.yaml"), "w") as file:
            file.write(FIELDS.format(url=url))
        words = [binary, "bridge", "--upstream", "upstream.yaml", "--credential", "tracker=token", "--listen", "127.0.0.1:0", "--audit-file", audit]
        with open(log, "wb") as errors, running(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors):
            said = until("the bridge listens", lambda: "address=127.0.0.1:" in content(log) and content(log))
            yield "http://" + said.split("address=")[1].split()[0] + "/mcp", audit, log


def told(answer, *names):
    return [(answer.structured_content or {}).get(name) for name in names]


async def calls(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    check("the allowed tools are listed that the server has", sorted(tools) == ["comment", "ended", "fail", "search", "wait"], sorted(tools))
    check("a tool has the words of the server", tools["search"].description == "Find issues by a text.", tools["search"])
    check("a tool without rules has the schema of the server", set(tools["search"].input_schema["properties"]) == {"query", "limit"}, tools["search"])
    schema = tools["comment"].input_schema
    good = schema["properties"]["issue"]["pattern"] == "^(?:[A-Z]+-[0-9]+)$" and schema["additionalProperties"] is False
    check("a tool with rules has their schema", good, schema)
    seen = await client.call_tool("search", {"query": "x", "limit": 2})
    check("a tool answers with structure and text", not seen.is_error and told(seen, "found") == [["x-0", "x-1"]] and seen.content, seen)
    seen = await client.call_tool("comment", {"issue": "AB-1", "body": "two\nlines"})
    text = seen.content[0].text if seen.content else ""
    check("the credential is not in an answer", text == "AB-1: two\nlines ([credential tracker])", seen)
    for what, tool, arguments, rule in [
        ("a call that breaks a rule", "comment", {"issue": "1", "body": "x"}, "pattern"),
        ("a call with another argument", "comment", {"issue": "AB-1", "body": "x", "force": True}, "unknown"),
        ("a call of a tool that is not allowed", "drop", {}, "notAllowed"),
    ]:
        seen = await client.call_tool(tool, arguments)
        check(f"{what} is rejected", seen.is_error and told(seen, "status", "rule") == ["rejected", rule], seen)
    seen = await client.call_tool("gone", {})
    check("a call of a tool that the server lacks is told", seen.is_error and told(seen, "rule") == ["notOffered"], seen)
    seen = await client.call_tool("fail", {})
    check("a tool that fails is a failed call with its words", seen.is_error and "no such issue" in seen.content[0].text, seen)
    seen = await client.call_tool("search", {"limit": "many"})
    check("the server judges arguments without rules", seen.is_error, seen)
    answers = await asyncio.gather(*(client.call_tool("search", {"query": str(n), "limit": 1}) for n in range(4)))
    check("calls at once do not mix", [told(one, "found")[0] for one in answers] == [[f"{n}-0"] for n in range(4)], answers)
    before = int((await client.call_tool("ended", {})).content[0].text)
    waiting = asyncio.create_task(client.call_tool("wait", {"seconds": 25}))
    await asyncio.sleep(2)
    waiting.cancel()
    await asyncio.wait([waiting])
    return before


async def ended_after(url, mode, before):
    """Whether a call that waits ends at the server after its client is gone."""
    end = time.monotonic() + 10
    async with Client(url, mode=mode) as client:
        while time.monotonic() < end:
            if int((await client.call_tool("ended", {})).content[0].text) > before:
                return True
            await asyncio.sleep(0.2)
    return False


async def main(binary, modules):
    for kind, more in [("both revisions", []), ("the older revision alone", ["older"])]:
        with tempfile.TemporaryDirectory() as folder, bridge(binary, folder, more) as (url, audit, log):
            for mode, revision in [("legacy", "2025-11-25"), ("auto", "2026-07-28")]:
                print(f"     a server of {kind}, the Python client, revision {revision}", flush=True)
                async with Client(url, mode=mode) as client:
                    check("it speaks this revision", client.protocol_version == revision, client.protocol_version)
                    before = await calls(client)
                # The older revision cancels by a notice, which a bridge without sessions cannot assign to a call.
                if mode == "auto":
                    check("a call that is cancelled ends at the server", await ended_after(url, mode, before), before)
            print(f"     a server of {kind}, the JavaScript clients", flush=True)
            ended = subprocess.run(["node", os.path.join(HERE, "upstream_client.mjs"), url, modules])
            check("the JavaScript clients are content", ended.returncode == 0, ended.returncode)
            events = [json.loads(line) for line in content(audit).splitlines()]
            starts = [event for event in events if event["event"] == "Start"]
            check("each call has a record", len(starts) >= 20 and all(start["program"] != "drop" for start in starts), len(starts))
            check("each rejected call has a record", sum(event.get("rule") == "notAllowed" for event in events) >= 2, events)
            verified = subprocess.run([binary, "bridge", "audit", "verify", audit], capture_output=True, text=True)
            check("the audit log is whole", verified.returncode == 0, verified.stderr)
            check("the credential is in no log", TOKEN not in content(audit) + content(log), "it is")


asyncio.run(main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])))
sys.exit(failed != 0)
