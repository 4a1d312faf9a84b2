#!/usr/bin/env bash
# Tests config/laptop/spillway-wrap with the real Codex, the real bridge and the scripted model server: without the bridge Codex is
# not started; with it, it does a task and offers the bridge's tools to its model. Then e2e/images/codex-agent.sh, the program of pods,
# calls a program of the bridge.
#
#   tests/clients/laptop.sh BINARIES    BINARIES is a folder with built spillway, spillway-agent and spillway-model-server
#
# This needs bubblewrap, curl, Python 3 and the output of `make images-codex`.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
binaries=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
image=${IMAGES:-target/images}/codex-agent.tar
[ -e "$image" ] || { echo "laptop: $image is missing. Run: make images-codex" >&2; exit 2; }
work=$(mktemp -d) started=()
# Servers end first: the bridge removes its own folder.
trap '[ ${#started[@]} = 0 ] || { kill "${started[@]}" && wait; }; rm -rf "$work"' EXIT

home=$work/home wrap=$PWD/config/laptop/spillway-wrap
mkdir -p "$home/tools/bin" "$home/project" "$home/.codex" "$work/root" "$work/definitions"
tar -xOf "$image" layer.tar | tar -C "$work/root" -xpf - ./bin/codex ./bin/codex-code-mode-host
mv "$work"/root/bin/* "$home/tools/bin"
echo 'not for the sandbox' > "$home/.codex/auth.json"
printf -- '---\nname: say\ndescription: d\ncommand: /usr/bin/printf\nargv: [hello]\n---\n' > "$work/definitions/say.md"

"$binaries/spillway-model-server" --listen 127.0.0.1:0 --credentials codex=held > "$work/address" &
started+=($!)
until [ -s "$work/address" ]; do sleep 0.05; done
model=$(head -n 1 "$work/address")
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

own=$home/.config/spillway-wrap/codex
mkdir -p "$own"
cat > "$own/config.toml" <<CONFIG
model = "scripted"
model_provider = "scripted"
[model_providers.scripted]
name = "scripted"
base_url = "$model/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
CONFIG

failed=0
check() { if "${@:2}"; then echo "ok   $1"; else echo "FAIL $1"; failed=1; fi; }
# codex ARGUMENT... : through the wrapper, with its log in $work/log and its exit code in `code`
codex() {
    code=0
    (cd "$home/project" && env -i PATH="$home/tools/bin:$binaries:/usr/bin:/bin" HOME="$home" LANG=C.UTF-8 OPENAI_API_KEY=held \
        timeout 120 "$wrap" --bridge-url "http://127.0.0.1:$port" codex "$@") < /dev/null > "$work/log" 2>&1 || code=$?
}
# shellcheck disable=SC2329  # check calls it, and the next one
requests() { curl -s "$model/requests" > "$work/requests"; grep -q "$1" "$work/requests"; }
# shellcheck disable=SC2329
not() { ! "$@"; }

codex exec --skip-git-repo-check "Write it"
check "without the bridge it is not started" [ "$code" = 125 ]
check "and the message says how to start the bridge" grep -q 'start it with: spillway bridge' "$work/log"
check "and no model was called" not requests /v1/responses

"$binaries/spillway" bridge --definitions "$work/definitions" --listen "127.0.0.1:$port" --audit-file "$work/audit.log" 2> "$work/bridge.log" &
started+=($!)
for _ in $(seq 200); do ! curl -s "http://127.0.0.1:$port/" > /dev/null || break; sleep 0.05; done
codex exec --skip-git-repo-check "Write it"
check "with the bridge it does its task" [ "$code" = 0 ]
[ "$code" = 0 ] || cat "$work/log"
check "in the workspace" [ -e "$home/project/write-it.txt" ]
check "its model is offered the tools of the bridge" requests list_programs
codex mcp list
check "the bridge is one of its servers" grep -q "^spillway .*http://127.0.0.1:$port/mcp" "$work/log"
check "its settings are its own" [ "$(ls -A "$home/.codex")" = auth.json ]
check "and stay" [ -d "$own/sessions" ]

# agent : codex-agent as in a pod with a Toolset `tools`, with its exit code in `code`
agent() {
    code=0
    (cd "$work/agent" && env -i PATH="$home/tools/bin:/usr/bin:/bin" HOME="$work/agent" LANG=C.UTF-8 OPENAI_API_KEY=held \
        SPILLWAY_RESULT_FILE="$work/result" SPILLWAY_MCP_SERVERS="{\"tools\":\"http://127.0.0.1:$port/mcp\"}" \
        timeout 120 "$codex_agent") <<< "Call say" > "$work/log" 2>&1 || code=$?
}
codex_agent=$PWD/e2e/images/codex-agent.sh
mkdir -p "$work/agent/.codex"
cp "$own/config.toml" "$work/agent/.codex/config.toml"
agent
check "Codex of a pod calls a program of a Toolset" grep -q '"event":"Start".*"program":"say"' "$work/audit.log"
check "and goes on" grep -q "Done: say was called." "$work/result"
[ "$failed" = 0 ] || cat "$work/log"
kill "${started[1]}"
wait "${started[1]}" || true
unset 'started[1]'
agent
check "without the Toolset it does not start" [ "$code" = 1 ]
check "and its log says so" grep -q 'required MCP servers failed to initialize: tools' "$work/log"
exit "$failed"
