"""An MCP server by the official Python SDK, as the upstream of a bridge: `upstream_server.py TOKEN FILE [older]`.

It serves streamable HTTP on a free port of loopback, which it writes to FILE, and refuses requests without the bearer token TOKEN. With
`older` it speaks only the revision of the protocol with sessions.
"""

import asyncio
import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

token, file, older = sys.argv[1], sys.argv[2], sys.argv[3:] == ["older"]
server = MCPServer("tracker")
cancelled = []


@server.tool()
def search(query: str, limit: int = 10) -> dict[str, object]:
    """Find issues by a text."""
    return {"found": [f"{query}-{n}" for n in range(limit)]}


@server.tool()
async def comment(issue: str, body: str, ctx: Context) -> str:
    """Write a comment under an issue."""
    await ctx.report_progress(1, 2)
    return f"{issue}: {body} ({token})"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no such issue")


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append("wait")
        raise
    return "waited"


@server.tool()
def ended() -> str:
    """Count the calls that were cancelled."""
    return str(len(cancelled))


@server.tool()
def drop() -> str:
    """Drop everything."""
    raise SystemExit("a tool that is not allowed was called")


app = server.streamable_http_app()


async def guarded(scope, receive, send):
    headers = dict(scope.get("headers") or [])
    status = None
    if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {token}".encode():
        status = 401
    elif scope["type"] == "http" and older and headers.get(b"mcp-protocol-version") == b"2026-07-28":
        status = 400
    if status is None:
        return await app(scope, receive, send)
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"refused"})


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
with open(file, "w") as out:
    out.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
uvicorn.Server(uvicorn.Config(guarded, log_level="warning", lifespan="on")).run(sockets=[listener])
