#!/usr/bin/env bash
# Tests the official Python clients (requirements.txt, pinned by digest) with refusals for a budget. Without arguments the
# scripted model server imitates the refusals. With arguments the clients call the given addresses:
#
#   tests/clients/run.sh
#   tests/clients/run.sh final --anthropic http://127.0.0.1:4101/claude --openai http://127.0.0.1:4101/openai/v1 \
#       --model MODEL --expect Budget/codex left
#   tests/clients/run.sh waits --anthropic http://127.0.0.1:4101/claude --spend MODEL --model MODEL
#
# cluster.sh calls it with arguments, in an agent's network. (`run.sh install` only installs the clients.)
#
# Without arguments the official client of MCP also calls `spillway mcp`.
#
# MODEL_SERVER, POD_BINARY: built binaries spillway-model-server and spillway-agent. This needs Python 3.10 or newer, with venv.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
venv=$(tests/venv.sh clients "$here/requirements.txt")
[ "${1:-}" != install ] || exit 0
clients() { "$venv/bin/python" "$here/clients.py" "$@"; }
if [ $# -gt 0 ]; then clients "$@"; exit; fi

server=${MODEL_SERVER:-}
if [ -z "$server" ]; then
    cargo build --quiet --locked --package spillway-model-server
    server=target/debug/spillway-model-server
fi
pod=${POD_BINARY:-}
if [ -z "$pod" ]; then
    cargo build --quiet --locked --package spillway-pod
    pod=target/debug/spillway-agent
fi
work=$(mktemp -d)
mkfifo "$work/address"
MODEL_SERVER_CREDENTIALS=test=held-by-spillway "$server" > "$work/address" &
pid=$!
trap 'kill "$pid" 2>/dev/null; rm -rf "$work"' EXIT
read -r base < "$work/address"
failed=0
clients final --anthropic "$base" --openai "$base/v1" --model 'm-{api}-{stream}--final' \
    --expect Budget/codex '0 of 300000 tokens are left' 2026-12-01T00:00:00Z 'spec.tokens.limits[hourly].tokens' || failed=1
clients waits --anthropic "$base" --openai "$base/v1" --model 'm-{api}-{stream}--window-10' || failed=1
"$venv/bin/python" "$here/mcp_client.py" "$pod" || failed=1
exit "$failed"
