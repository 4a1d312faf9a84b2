"""Tests the official Python client of MCP with `spillway mcp`: `mcp_client.py BINARY`, where BINARY is spillway-agent.

There is no sidecar, so no breaker guards the commands. The model gets a note about that, and no command is refused.
"""

import asyncio
import os
import sys
import tempfile
import time

from mcp import ClientSession, StdioServerParameters, stdio_client

failed = 0


def check(what, good, seen):
    global failed
    failed += not good
    print(("ok   " if good else "FAIL ") + what + ("" if good else f": {seen}"), flush=True)


async def main(binary, folder):
    server = StdioServerParameters(command=binary, args=["--ask-socket", f"{folder}/none", "--ask-data", folder, "mcp"], cwd=folder)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
        hello = await client.initialize()
        check("it is greeted in a revision that both speak", hello.protocol_version == "2025-11-25", hello)
        tools = (await client.list_tools()).tools
        check("there is one tool", [tool.name for tool in tools] == ["run_command"], tools)

        async def run(**arguments):
            answer = await client.call_tool("run_command", arguments)
            return answer.structured_content or {}, answer.is_error, answer

        told, error, seen = await run(command=["sh", "-c", "cat; exit 3"], stdin="hello")
        check("a command's code and output come back, and the client takes them for what was promised",
              told.get("exitCode") == 3 and told.get("stdout") == "hello" and not error, seen)
        told, error, seen = await run(command="sleep 60 & echo done")
        check("it returns when the command has ended, and what it left behind is ended",
              told.get("stdout") == "done\n" and told.get("killedSurvivors") == 1, seen)
        told, error, seen = await run(command="sleep 60", timeoutSeconds=0.5)
        check("a command that hangs is a failed call", told.get("timedOut") is True and error, seen)
        told, error, seen = await run(command=7)
        check("what cannot be run is a failed call with words", error, seen)
        answers = await asyncio.gather(*(run(command=["sh", "-c", f"echo {n}"]) for n in range(6)))
        check("calls at once do not mix", [told.get("stdout") for told, _, _ in answers] == [f"{n}\n" for n in range(6)], answers)

        marked = f"{folder}/began"
        call = asyncio.create_task(run(command=f": > {marked}; sleep 61.7"))
        while not os.path.exists(marked):
            await asyncio.sleep(0.05)
        call.cancel()
        end = time.monotonic() + 30
        while asleep() and time.monotonic() < end:
            await asyncio.sleep(0.05)
        check("a call that is cancelled ends its command", not asleep(), "it runs on")


def asleep():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                if line.read() == b"sleep\x0061.7\x00":
                    return True
        except OSError:
            continue
    return False


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(os.path.abspath(sys.argv[1]), folder))
sys.exit(failed != 0)
