"""Tests the official Python client of MCP with `spillway bridge`: `bridge_client.py BINARY`, where BINARY is spillway.

It speaks both revisions of the protocol over HTTP: 2025-11-25, which begins with `initialize`, and 2026-07-28, which has no sessions.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from mcp import Client, MCPError

# Longer than anything takes on a busy machine.
GENEROUS = 30
# A call would last this many seconds, and its process is found by them.
CANCELLED, LEFT = "61.7", "62.7"
# With this revision a client cancels a call by a notice in a request of its own. The bridge has no sessions, so it does not know whose call
# the notice is about, and ignores it: the program runs until its client leaves. With the other revision the client closes its request.
IGNORES_CANCEL = {"2025-11-25"}

failed = 0


def check(what, good, seen):
    global failed
    failed += not good
    print(("ok   " if good else "FAIL ") + what + ("" if good else f": {seen}"), flush=True)


@contextlib.contextmanager
def bridge(binary, folder):
    """The address of a bridge that runs in this folder."""
    definitions, log = os.path.join(folder, "definitions"), os.path.join(folder, "stderr")
    shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "definitions"), definitions)
    words = [binary, "bridge", "--definitions", definitions, "--listen", "127.0.0.1:0", "--audit-file", f"{folder}/audit"]
    with open(log, "wb") as errors:
        process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        end = time.monotonic() + GENEROUS
        while True:
            with open(log) as file:
                said = file.read()
            if "address=127.0.0.1:" in said:
                break
            assert process.poll() is None and time.monotonic() < end, f"the bridge does not listen: {said}"
            time.sleep(0.05)
        yield "http://" + said.split("address=")[1].split()[0] + "/mcp"
    finally:
        process.terminate()
        process.wait()


def asleep(seconds):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as line:
            if line.read() == f"sleep\0{seconds}\0".encode():
                return True
    return False


async def becomes(wanted, seconds, wait=GENEROUS):
    """Waits until a program sleeps, or does not sleep any more."""
    end = time.monotonic() + wait
    while asleep(seconds) != wanted and time.monotonic() < end:
        await asyncio.sleep(0.05)
    return asleep(seconds) == wanted


async def calls(client):
    listed = (await client.list_tools()).tools
    check("there are three tools", [tool.name for tool in listed] == ["list_programs", "help", "execute"], listed)

    async def call(tool, **arguments):
        answer = await client.call_tool(tool, arguments)
        return answer.structured_content or {}, answer.is_error, answer

    def execute(program, **arguments):
        return call("execute", program=program, args=arguments)

    told, error, seen = await call("list_programs")
    names = [program["name"] for program in told.get("programs", [])]
    check("the programs are listed", names == ["say", "shell"] and not error, seen)
    told, error, seen = await call("help", program="say")
    check("a program is explained, with a schema of its arguments",
          told.get("text") == "Help of say." and told.get("argsSchema", {}).get("required") == ["one"] and not error, seen)
    told, error, seen = await execute("say", one="$(id); `id` 'x' é", two="-rf")
    check("a program runs with its arguments as they are",
          told.get("status") == "ok" and told.get("stdout") == "$(id); `id` 'x' é|--two=-rf|" and not error, seen)
    told, error, seen = await execute("shell", script="echo out; echo err >&2; exit 3")
    check("a program that fails is a failed call with its code and output",
          error and [told.get(name) for name in ("status", "exitCode", "stdout", "stderr")] == ["nonzero", 3, "out\n", "err\n"], seen)

    for what, answer, field, rule in [
        ("without a required argument", execute("say"), "one", "required"),
        ("with an option in place of a value", execute("say", one="-rf"), "one", "leadingDash"),
        ("with an argument of another type", execute("say", one=1), "one", "type"),
        ("with an unknown argument", execute("say", one="x", three="y"), "args", "unknown"),
        ("of an unknown program", execute("none"), None, "unknownProgram"),
        ("with an unknown word for a tool", call("execute", program="say", arg={}), None, "arguments"),
        ("for the help of an unknown program", call("help", program="none"), None, "unknownProgram"),
    ]:
        told, error, seen = await answer
        good = error and [told.get(name) for name in ("status", "field", "rule")] == ["rejected", field, rule] and told.get("message")
        check(f"a call {what} is a failed call that says why", good, seen)
    try:
        seen = await client.call_tool("run", {})
    except MCPError as error:
        seen = error
    check("an unknown tool is an error of the protocol", getattr(getattr(seen, "error", None), "code", None) == -32602, seen)

    # The first ends last.
    answers = await asyncio.gather(*(execute("shell", script=f"sleep 0.{6 - n}; echo {n}") for n in range(6)))
    check("calls at once do not mix", [told.get("stdout") for told, _, _ in answers] == [f"{n}\n" for n in range(6)], answers)

    sleeping = asyncio.create_task(execute("shell", script=f"sleep {CANCELLED}; true"))
    began = await becomes(True, CANCELLED)
    sleeping.cancel()
    await asyncio.wait([sleeping])
    if client.protocol_version in IGNORES_CANCEL:
        ended = await becomes(False, CANCELLED, 3)
        check("LIMIT: a call that is cancelled runs on", began and not ended, "it ended: IGNORES_CANCEL is wrong")
    else:
        check("a call that is cancelled ends its program", began and await becomes(False, CANCELLED), f"it began: {began}")
    told, error, seen = await execute("say", one="x")
    check("the client goes on after that", told.get("stdout") == "x|" and not error, seen)


async def hold(url, mode):
    async with Client(url, mode=mode) as client:
        await client.call_tool("execute", {"program": "shell", "args": {"script": f"sleep {LEFT}; true"}})


async def main(binary, folder):
    with bridge(binary, folder) as url:
        for mode, revision in [("legacy", "2025-11-25"), ("auto", "2026-07-28")]:
            async with Client(url, mode=mode) as client:
                print(f"     revision {client.protocol_version}, {client.server_info}", flush=True)
                good = client.protocol_version == revision and client.server_info.name == "spillway-bridge" and client.instructions
                check("it is greeted in this revision, with instructions", good, client.instructions)
                await calls(client)
            check("no program outlives its client", await becomes(False, CANCELLED), "it runs on")
            client = subprocess.Popen([sys.executable, __file__, "hold", url, mode], stderr=subprocess.DEVNULL)
            began = await becomes(True, LEFT)
            client.send_signal(signal.SIGKILL)
            client.wait()
            check("a client that is killed ends its program", began and await becomes(False, LEFT), f"it began: {began}")


if sys.argv[1] == "hold":
    asyncio.run(hold(*sys.argv[2:]))
else:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(os.path.abspath(sys.argv[1]), folder))
    sys.exit(failed != 0)
