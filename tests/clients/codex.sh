#!/usr/bin/env bash
# Tests the image codex-agent without a cluster: its files as a root file system with the read-only parts of a pod's, uid 10001,
# and a network of its own with only the scripted model server on loopback. It needs root, and the output of `make images-codex`.
#
#   tests/clients/codex.sh                does a task in two requests, and meets refusals as in docs/reference/clients.md
#   tests/clients/codex.sh show [MODES]   one run that shows all requests of Codex, for measuring. MODES as in `final--retry-5`
#   tests/clients/codex.sh refused WORD...   one run in the caller's network, an agent's (cluster.sh calls it). A spent budget
#                                         must end it, with these words in its log
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
images=${IMAGES:-target/images}
server=${MODEL_SERVER:-target/$(rustc -vV | sed -n 's/^host: //p')/quick/spillway-model-server}
port=4101

if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || { echo "codex: run this as root: it makes namespaces" >&2; exit 2; }
    own=(--net) needed=("$images/codex-agent.tar" "$server")
    [ "${1:-}" != refused ] || own=() needed=("$images/codex-agent.tar")
    for file in "${needed[@]}"; do
        [ -e "$file" ] || { echo "codex: $file is missing. Run: make images-codex" >&2; exit 2; }
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/root"
    tar -xOf "$images/codex-agent.tar" layer.tar | tar -C "$work/root" -xpf -
    # Its own network, processes and mounts, which end with the script.
    MODEL_SERVER=$server unshare "${own[@]}" --mount --pid --fork --kill-child "$0" inside "$work" "$@"
    exit
fi

work=$2 root=$2/root
shift 2
# The sidecar's address is followed by the pool's entry, that of the scripted server is not.
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

# codex MODEL TASK : runs the program like a pod's supervisor, with its log in $work/log and its exit code in `code`
codex() {
    rm -rf "${root:?}"/workspace/* "${root:?}"/tmp/* "$root"/home/agent/.codex "$root/home/agent/codex"
    # The folder belongs to root, as when the kubelet mounts a file into HOME.
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

# The number of calls of a model so far.
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
        grep -qF -- "$word" "$work/log" || { echo "the log of Codex lacks $word:"; cat "$work/log"; exit 1; }
    done
    [ "$code" = 1 ] || { echo "Codex ended with exit code $code"; cat "$work/log"; exit 1; }
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

# For a model that Codex knows, the tools are in the input, and one tool takes JavaScript.
codex gpt-6-sol "Write it in the other way"
check "so it does with a model of the newer kind" [ "$(cat "$root/workspace/write-it-in-the-other-way.txt" 2>&1)" = write-it-in-the-other-way ]

# A spent budget: Codex makes one request without a retry, and the log names the budget and the field to raise.
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
