#!/usr/bin/env bash
# Tests `spillway bridge` with the official clients of MCP in Python and JavaScript, and with the official conformance suite. All are
# pinned by digest, and installed once, in the cache.
#
#   tests/clients/bridge.sh BINARY     BINARY is a built spillway
#
# This needs Python 3.10 or newer, with venv, and Node 20 or newer, with npm.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
binary=$(realpath "$1")
venv=$("$here/../venv.sh" clients "$here/requirements.txt")
modules=${SPILLWAY_CACHE:-$HOME/.cache/spillway}/clients-js-$(cat "$here"/js/package*.json <(node --version) | sha256sum | cut -c1-12)
if [ ! -e "$modules/done" ]; then
    rm -rf "$modules"
    mkdir -p "$modules"
    cp "$here"/js/package*.json "$modules"
    # npm would warn on Node 20 of a package that asks for Node 22. It works all the same.
    (cd "$modules" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) >&2
    touch "$modules/done"
fi
failed=0
echo "-- the Python client"
"$venv/bin/python" "$here/bridge_client.py" "$binary" || failed=1
echo "-- the JavaScript clients"
node "$here/bridge_client.mjs" "$binary" "$modules" || failed=1
echo "-- a bridge in front of an MCP server by the Python SDK"
"$venv/bin/python" "$here/upstream_client.py" "$binary" "$modules" || failed=1
echo "-- the conformance suite"
node "$here/bridge_conformance.mjs" "$binary" "$modules" || failed=1
exit "$failed"
