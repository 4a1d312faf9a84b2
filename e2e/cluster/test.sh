#!/usr/bin/env bash
# Tests of the cluster's own scripts: idempotence, crashes, leftovers, two clusters at once, and that nothing is left.
# They use two clusters of their own (names sw-test-*). The last line is "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
unset SPILLWAY_KUBECONFIG
root=${SPILLWAY_STATE_ROOT:-/var/lib/spillway-e2e}
one=sw-test-${$}a two=sw-test-${$}b
log=$(mktemp)
passed=0 failed=0
c() { local name=$1; shift; SPILLWAY_CLUSTER=$name "$here/cluster" "$@"; }
ok() { echo "ok   $1 ($((SECONDS - t0)) s)"; passed=$((passed + 1)); t0=$SECONDS; }
fail() { echo "FAIL $1"; tail -n 20 "$log"; failed=$((failed + 1)); t0=$SECONDS; }
# check NAME COMMAND... : must succeed;  deny NAME COMMAND... : must fail
check() { local name=$1; shift; if "$@" > "$log" 2>&1; then ok "$name"; else fail "$name"; fi; }
deny() { local name=$1; shift; if "$@" > "$log" 2>&1; then fail "$name"; else ok "$name"; fi; }
# same NAME WANT GOT
same() { if [ "$2" = "$3" ]; then ok "$1"; else echo "want: $2, got: $3" > "$log"; fail "$1"; fi; }
t0=0
trap 'c "$one" down >/dev/null 2>&1; c "$two" down >/dev/null 2>&1; rm -f "$log" "$log".*' EXIT
links() { ip -o link | cut -d: -f2 | sort; }
before=$(links)

# nothing_left NAME NETNS_INODE : prints what is left of the cluster
nothing_left() {
    local f
    [ ! -e "/run/netns/$1" ] || echo "network namespace $1"
    [ ! -e "$root/$1" ] || echo "state $root/$1"
    [ ! -e "$root/.$1.lock" ] || echo "lock"
    find /sys/fs/cgroup -maxdepth 2 -name "$1" 2>/dev/null
    grep -ls "$root/$1/" /proc/[0-9]*/mountinfo | sed 's/^/a mount, seen by /'
    for f in /proc/[0-9]*; do
        [ "$f" != "/proc/$$" ] || continue
        if tr '\0' ' ' < "$f/cmdline" 2>/dev/null | grep -q "$root/$1/"; then echo "process ${f#/proc/}: $(tr '\0' ' ' < "$f/cmdline" | cut -c1-120)"; fi
        if grep -qs "/$1" "$f/cgroup"; then echo "process ${f#/proc/} in a cgroup of $1"; fi
        if [ -n "$2" ] && [ "$(stat -Lc %i "$f/ns/net" 2>/dev/null)" = "$2" ]; then echo "process ${f#/proc/} in its network"; fi
    done 2>/dev/null
}
inode() { stat -Lc %i "/run/netns/$1"; }

check "control plane up" c "$one" up --control-plane
check "status says so" c "$one" status
check "up is idempotent" c "$one" up --control-plane
deny "bad name is refused" c 'Bad_Name' status
check "full up on top" c "$one" up
said() { grep -qF -- "$1" <<< "$("${@:2}" 2>&1)"; }   # said TEXT COMMAND... : its output holds TEXT
pinned=$("$here/cluster" versions | grep "^${KUBERNETES:-1}")
check "status says the version" said "version  v$(sed -n '1s/.* //p' <<< "$pinned")" c "$one" status
check "an unknown version is refused" said "is unknown" env KUBERNETES=1.2 SPILLWAY_CLUSTER="$two" "$here/cluster" up
same "and leaves nothing" "" "$([ ! -e "$root/$two" ] || echo "$root/$two")"
other=$("$here/cluster" versions | cut -d ' ' -f 1 | grep -v "^${pinned%% *}" | head -n 1)
check "another version is refused" said "asks for another version" env KUBERNETES="$other" SPILLWAY_CLUSTER="$one" "$here/cluster" up
check "node is ready" c "$one" run kubectl wait --for=condition=Ready "node/$one-node" --timeout=30s

c "$one" run sh -c 'exit 7'; same "run passes the exit status on" 7 $?
same "run passes stdin and stdout on" hello "$(echo hello | c "$one" run cat)"
same "run keeps the working directory" /usr "$(cd /usr && c "$one" run pwd)"
# shellcheck disable=SC2016  # expanded inside
same "run keeps the caller's PATH" yes "$(PATH=$PATH:/nowhere/mine c "$one" run sh -c 'case $PATH in *:/nowhere/mine) echo yes;; esac')"
c "$one" run sleep 300 & sleeper=$!
sleep 0.3; kill -TERM $sleeper; wait $sleeper 2>/dev/null; same "a signal reaches what run runs" 143 $?

c "$one" run kubectl create deployment web --image=localhost/spillway/testbox:dev --replicas=2 -- sleep 3600 > "$log" 2>&1
check "pods come up" c "$one" run kubectl rollout status deploy/web --timeout=60s

pid=$(c "$one" pid kubelet)
c "$one" kill apiserver
deny "status sees the dead API server" c "$one" status
check "up brings it back" c "$one" up
same "and left the kubelet alone" "$pid" "$(c "$one" pid kubelet)"
c "$one" pause controller-manager
deny "status sees the paused one" c "$one" status
check "resume" c "$one" resume controller-manager
check "all is well again" c "$one" status

check "a second cluster beside it" c "$two" up
check "its node is ready" c "$two" run kubectl wait --for=condition=Ready "node/$two-node" --timeout=30s

c "$one" pause scheduler    # a stopped parent must not disturb the next steps
kill -9 "$(c "$one" pid holder)"
for _ in $(seq 50); do c "$one" pid etcd >/dev/null 2>&1 || break; sleep 0.1; done
deny "status after a power cut" c "$one" status
check "up after a power cut" c "$one" up
check "the pods come back" c "$one" run kubectl wait --for=condition=Available deploy/web --timeout=60s
# The condition Available may be out of date: the API learns of dead containers only at the kubelet's next check.
check "they run" c "$one" run timeout 30 sh -c 'until kubectl exec deploy/web -- true; do sleep 0.3; done'

(c "$one" up > "$log.1" 2>&1) & first=$!
check "two ups at once" c "$one" up
wait $first; same "and the other" 0 $?

check "snapshot" c "$one" snapshot "$log.snap"
c "$one" run kubectl create configmap later > "$log" 2>&1
check "restore" c "$one" restore "$log.snap"
deny "what came after the snapshot is gone" c "$one" run kubectl get configmap later
check "the pods are still there" c "$one" run kubectl wait --for=condition=Available deploy/web --timeout=60s
check "second API server" c "$one" apiserver2 up
same "it serves" 2 "$(c "$one" run kubectl --kubeconfig="$root/$one/kubeconfig/admin2.conf" get deploy web -o jsonpath='{.spec.replicas}')"

c "$one" run sleep 300 & disown $!   # down must end it
ino=$(inode "$one") pids=$(c "$two" status | awk '$2 == "alive" {print $1, $3}')
check "down" c "$one" down
same "nothing is left of it" "" "$(nothing_left "$one" "$ino")"
same "the other did not notice" "$pids" "$(c "$two" status | awk '$2 == "alive" {print $1, $3}')"
c "$two" run kubectl run after --image=localhost/spillway/testbox:dev --image-pull-policy=IfNotPresent --command -- sleep 60 > "$log" 2>&1
check "and still starts pods" c "$two" run kubectl wait --for=condition=Ready pod/after --timeout=30s
check "down of what is down" c "$one" down

# A half-removed cluster: the holder is dead, its record is gone, and a name without its namespace is left.
ino=$(inode "$two"); kill -9 "$(c "$two" pid holder)"; rm -rf "$root/$two/pid"
check "down of a wreck" c "$two" down
same "nothing is left of it either" "" "$(nothing_left "$two" "$ino")"
same "no new network interface on the host" "$before" "$(links)"
same "no mount point is left on the host" "" "$([ -e "$root" ] || ls -d /run/containerd /opt/containerd 2>/dev/null)"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
