#!/usr/bin/env bash
# The benchmarks of docs/benchmarks.md, on a cluster of their own. `make bench` builds the release binaries and the images, and
# calls this. The cluster is removed afterwards.
# Arguments: the benchmarks to run (ledger, breaker, bridge, tools, gateway, flood, hostile, failover, burst, pod, git, work, agents, fleet,
# writes); none: all.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). SPILLWAY_BINARY: another operator to measure, and
# SPILLWAY_CRDS: the folder of its CRDs.
# BENCH_AGENTS=50: small benchmarks, to see that they work (minutes become quarters of minutes too). Default 1000, of which
# `work` and `git` have 200, `gateway` and `flood` 50. BENCH_ITEMS=500: items that wait in `work` and `flood`. Default 10000, or
# ten for each agent of a small fleet. BENCH_RATE=100: calls a second in `gateway`, and of the flood in `flood`. Each has its own default.
# BENCH_ATTACK=pods: of `hostile` only the attacks whose name contains this.
# SPILLWAY_NGINX: the nginx that `gateway` and `git` compare with; default: the one on PATH, else Debian's, unpacked into the cache.
# BENCH_BESIDE=1: of `work` only the measurements beside items that wait.
# SPILLWAY_AGENT_BINARY: the spillway-agent that `git` runs; default: the one beside the operator.
# `git` needs git with http-backend, and about 4 GiB of disk in `target`.
# BENCH_KEEP=1: keep the cluster for inspection.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# The checkout's own cluster may be in use, so benchmarks have a cluster of their own.
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-bench}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
host=$(rustc -vV | sed -n 's/^host: //p')
SPILLWAY_BINARY=$(realpath "${SPILLWAY_BINARY:-target/$host/release/spillway}")
export SPILLWAY_BINARY
images=(target/images/spillway.tar target/images/demo-agent.tar)
started=$(date +%s)
step() { printf '\n== [%4ds] %s\n' $(($(date +%s) - started)) "$*"; }

for file in "$SPILLWAY_BINARY" "${images[@]}"; do
    [ -f "$file" ] || { echo "$file is missing: run \`make images\`, or \`make bench\`, which builds it" >&2; exit 1; }
done

# Debian's nginx, unpacked and not installed: it runs from any folder.
find_nginx() {
    local cache=${SPILLWAY_CACHE:-${HOME:-/root}/.cache/spillway}/nginx found
    found=${SPILLWAY_NGINX:-$(PATH=$PATH:/usr/sbin:/sbin command -v nginx || true)}
    if [ -z "$found" ] && [ ! -x "$cache/usr/sbin/nginx" ] && command -v apt-get >/dev/null; then
        mkdir -p "$cache"
        # The package lists may be out of date.
        (cd "$cache" && { apt-get download -qq nginx || { apt-get update -qq && apt-get download -qq nginx; }; } &&
            dpkg-deb -x nginx_*.deb . && rm -f nginx_*.deb) > "$cache.log" 2>&1 || tail -n 3 "$cache.log" >&2
    fi
    SPILLWAY_NGINX=${found:-$cache/usr/sbin/nginx}
    "$SPILLWAY_NGINX" -v 2>/dev/null ||
        { echo "the benchmarks gateway and git need nginx. Install it (Debian: apt-get install nginx-light), or name one in SPILLWAY_NGINX" >&2; exit 1; }
    export SPILLWAY_NGINX
}

case " $* " in *" gateway "* | *" git "* | "  ") find_nginx ;; esac

finish() {
    local status=$?
    rm -rf target/bench/rooms # tokens of the removed cluster
    if [ "${BENCH_KEEP:-}" = 1 ]; then
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2
    else
        "${cluster[@]}" down
    fi
    [ "$status" = 0 ] || echo "Logs of operators: target/bench/logs" >&2
    exit "$status"
}

step "building the benchmarks"
# With the flags of `make build`, so that only the benchmarks themselves are built here.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --target "$host" --package spillway-bench

trap finish EXIT
step "starting the cluster $SPILLWAY_CLUSTER, with 20 KWOK nodes"
"${cluster[@]}" up --kwok 20
"${cluster[@]}" load "${images[@]}"
"${cluster[@]}" run kubectl apply --server-side -k "${SPILLWAY_CRDS:-crds}" > /dev/null
# Addresses of the simulated agents, in the cluster's own network.
"${cluster[@]}" run ip route replace local 10.200.0.0/16 dev lo

step "measuring $SPILLWAY_BINARY"
# Each agent has two connections, and both of their ends are on this machine.
ulimit -n "$(ulimit -Hn)"
SPILLWAY_AUDIT_LOG=$("${cluster[@]}" audit-log) "${cluster[@]}" run "target/$host/release/spillway-bench" "$@"
