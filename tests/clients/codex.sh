#!/usr/bin/env bash
# The image codex-agent at work, without a cluster: its files as a root file system that is read-only but where a pod's is
# not, uid 10001, a network of its own with nothing in it but the scripted model server on loopback. Needs root, and what
# `make images-codex` writes.
#
#   tests/clients/codex.sh                the task is done in two requests; refusals are met as docs/reference/clients.md says
#   tests/clients/codex.sh show [MODES]   one run, with all that Codex sends: for measuring. MODES as in `final--retry-5`
#   tests/clients/codex.sh refused WORD...   in the network where it is called, an agent's (cluster.sh does): one run, which a
#                                         spent budget must end, with these words in its log
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
images=${IMAGES:-target/images}
server=${MODEL_SERVER:-target/$(rustc -vV | sed -n 's/^host: //p')/quick/spillway-model-server}
port=4101

if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || { echo "codex: needs root, for namespaces" >&2; exit 2; }
    own=(--net) needed=("$images/codex-agent.tar" "$server")
    [ "${1:-}" != refused ] || own=() needed=("$images/codex-agent.tar")
    for file in "${needed[@]}"; do
        [ -e "$file" ] || { echo "codex: $file is missing: make images-codex" >&2; exit 2; }
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/root"
    tar -xOf "$images/codex-agent.tar" layer.tar | tar -C "$work/root" -xpf -
    # Its own network, processes and mounts: all of it is gone when the script is.
    MODEL_SERVER=$server unshare "${own[@]}" --mount --pid --fork --kill-child "$0" inside "$work" "$@"
    exit
fi

work=$2 root=$2/root
shift 2
# Behind the sidecar's address stands the entry of the pool, behind the scripted server's none.
entry=/v1
[ "${1:-}" != refused ] || entry=/openai/v1
[ "${1:-}" = refused ] || ip link set lo up
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
printf 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n' > "$root/etc/resolv.conf"
for folder in home/agent tmp workspace; do mount -t tmpfs -o mode=777 tmpfs "$root/$folder"; done
mount -o remount,bind,ro "$root"
if [ "${1:-}" != refused ]; then
    "$MODEL_SERVER" --listen "127.0.0.1:$port" --credentials codex=held-by-spillway > "$work/address" &
    until [ -s "$work/address" ]; do sleep 0.05; done
fi

ask() { chroot "$root" /bin/busybox wget -qO- "http://127.0.0.1:$port/$1"; }

# codex MODEL TASK : runs the program as a pod's supervisor does; its log in $work/log, its exit code in `code`
codex() {
    rm -rf "${root:?}"/workspace/* "${root:?}"/tmp/* "$root"/home/agent/.codex "$root/home/agent/codex"
    # As a kubelet mounts a file into HOME: the folder is root's.
    mkdir "$root/home/agent/.codex"
    sed -n '/^  config.toml: |/,$s/^    //p' config/samples/codex/settings.yaml |
        sed -e "s|^model = .*|model = \"$1\"|" -e "s|:4101/openai/v1|:$port$entry|" > "$root/home/agent/.codex/config.toml"
    code=0
    # shellcheck disable=SC2016  # expanded inside
    timeout "${CODEX_TIMEOUT:-120}" chroot --userspec=10001:10001 "$root" /bin/busybox env -i \
        PATH=/bin:/usr/bin HOME=/home/agent TMPDIR=/tmp LANG=C.UTF-8 OPENAI_API_KEY=held-by-spillway \
        HTTP_PROXY=http://127.0.0.1:4102 HTTPS_PROXY=http://127.0.0.1:4102 NO_PROXY=localhost,127.0.0.1,::1 \
        http_proxy=http://127.0.0.1:4102 https_proxy=http://127.0.0.1:4102 no_proxy=localhost,127.0.0.1,::1 \
        SPILLWAY_RESULT_FILE=/tmp/result /bin/sh -c 'cd /workspace && exec /bin/codex-agent' <<< "$2" > "$work/log" 2>&1 || code=$?
}

# Calls of a model so far.
calls() {
    ask count | python3 -c '
import json, sys
print(sum(line["calls"] for line in json.load(sys.stdin)["lines"] if line["model"] == sys.argv[1]))' "$1"
}

if [ "${1:-}" = show ]; then
    model=${CODEX_MODEL:-scripted}${2:+--$2}
    started=$(date +%s%3N)
    codex "$model" "Write a file that says hello"
    echo "== exit code $code after $(($(date +%s%3N) - started)) ms"; cat "$work/log"
    echo "== result"; cat "$root/tmp/result" 2>/dev/null || true
    echo "== workspace"; ls -la "$root/workspace" "$root/tmp" "$root/home/agent/codex" 2>/dev/null || true
    echo "== count"; ask count; echo
    ask requests > "${CODEX_REQUESTS:-/dev/null}"
    exit 0
fi

if [ "${1:-}" = refused ]; then
    shift
    codex scripted-large "Write nothing"
    for word in "$@"; do
        grep -qF -- "$word" "$work/log" || { echo "its log lacks $word:"; cat "$work/log"; exit 1; }
    done
    [ "$code" = 1 ] || { echo "it ended with $code"; cat "$work/log"; exit 1; }
    grep -F -- "$1" "$work/log" | tail -n 1
    exit 0
fi

passed=0 failed=0
check() {
    if "${@:2}" > "$work/said" 2>&1; then
        passed=$((passed + 1)); echo "ok   $1"
    else
        failed=$((failed + 1)); echo "FAIL $1"; cat "$work/said" "$work/log"
    fi
}

codex scripted "Write a file that says hello"
check "Codex ends with 0" [ "$code" = 0 ]
check "it did the task in its workspace" [ "$(cat "$root/workspace/write-a-file-that-says-hello.txt" 2>&1)" = write-a-file-that-says-hello ]
check "its last message is the result" grep -q '^Done: write-a-file-that-says-hello.txt is written.$' "$root/tmp/result"
check "it asked twice" [ "$(calls scripted)" = 2 ]

# A model that Codex knows has its tools in the input, and a tool that takes JavaScript.
codex gpt-6-sol "Write it in the other way"
check "so it does with a model of the newer kind" [ "$(cat "$root/workspace/write-it-in-the-other-way.txt" 2>&1)" = write-it-in-the-other-way ]

# A budget that is spent: one request, and the log says whose and what to raise. Nothing of it may be retried.
for mode in final final400; do
    codex "scripted--$mode" "Write nothing"
    check "$mode: Codex fails" [ "$code" = 1 ]
    check "$mode: it asked once" [ "$(calls "scripted--$mode")" = 1 ]
    check "$mode: its log names the budget, what is left, and the field to raise" \
        grep -q 'Budget/codex in demo is spent: 0 of 300000 tokens are left.*spec.tokens.limits\[hourly\].tokens' "$work/log"
done
codex scripted--window-6 "Write it later"
check "a window that resets soon is waited out" [ "$(cat "$root/workspace/write-it-later.txt" 2>&1)" = write-it-later ]

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
