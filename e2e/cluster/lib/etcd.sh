# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# Snapshots of the cluster's state, to play the restore of an old backup. etcdctl and etcdutl are not built; none is
# needed: etcd is made to survive a power cut at any instant, so a copy of the files of a *stopped* process (SIGSTOP,
# every thread standing) is a state it recovers from. Tried with fsync on and off: the copy reads the page cache.

snapshot() {
    local file=$1 pid stood
    [ "$(state_of etcd)" = alive ] || die "etcd does not run. Run: $HERE/cluster up"
    pid=$(pid_of etcd)
    signal_component etcd STOP
    trap 'kill -CONT '"$pid"' 2>/dev/null' EXIT
    stood=$(date +%s%N)
    rm -rf "$D/etcd.copy"; cp -a --sparse=always "$D/etcd" "$D/etcd.copy"
    signal_component etcd CONT
    stood=$((($(date +%s%N) - stood) / 1000000))
    trap - EXIT
    tar -C "$D/etcd.copy" --sparse -czf "$file.tmp" . || die "cannot write $file.tmp"
    rm -rf "$D/etcd.copy"
    mv "$file.tmp" "$file"
    say "$(elapsed) wrote $file ($(du -h "$file" | cut -f1)); etcd stood still for $stood ms"
}

# restore FILE : the API's state jumps back. Pods that run now but not then are removed by the kubelet, others come back.
# The cluster's own components are restarted, as after any restore, because resource versions went backwards; programs
# started with `run` are not told anything: what they do then is what a test wants to see.
restore() {
    local file=$1 c
    [ -s "$file" ] || die "no snapshot $file"
    tar -tzf "$file" ./member/snap/db >/dev/null 2>&1 || die "$file is no snapshot made by '$HERE/cluster snapshot'"
    for c in kwok netpol volumes coredns proxy kubelet scheduler controller-manager apiserver2 apiserver etcd; do
        [ "$(state_of $c)" = dead ] || signal_component $c KILL
    done
    rm -rf "$D/etcd"; mkdir -p "$D/etcd"; chmod 700 "$D/etcd"
    tar -C "$D/etcd" -xzf "$file"
    say "$(elapsed) etcd's files are those of $file; starting all again"
    [ -e "$D/wanted/kubelet" ] || control_plane_only=1
    bring_up
}
