# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# Snapshots of the cluster's state, to simulate the restore of an old backup. etcdctl and etcdutl are neither built nor needed:
# etcd survives a power failure at any time, so it recovers from a copy of the files of a *stopped* process (SIGSTOP, all
# threads). This was tried with fsync on and off: the copy reads the page cache.

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
    say "$(elapsed) wrote $file ($(du -h "$file" | cut -f1)); etcd was stopped for $stood ms"
}

# restore FILE : sets the API's state back. The kubelet removes pods that are not in the snapshot, and starts those that are.
# The cluster's own components are restarted, as after any restore, because resource versions went backwards. Programs started
# with `run` get no notice: tests observe what they do then.
restore() {
    local file=$1 c
    [ -s "$file" ] || die "the snapshot $file is missing or empty"
    tar -tzf "$file" ./member/snap/db >/dev/null 2>&1 || die "$file is not a snapshot of '$HERE/cluster snapshot'"
    for c in kwok netpol volumes coredns proxy kubelet scheduler controller-manager apiserver2 apiserver etcd; do
        [ "$(state_of $c)" = dead ] || signal_component $c KILL
    done
    rm -rf "$D/etcd"; mkdir -p "$D/etcd"; chmod 700 "$D/etcd"
    tar -C "$D/etcd" -xzf "$file"
    say "$(elapsed) etcd's files are restored from $file; starting all components again"
    [ -e "$D/wanted/kubelet" ] || control_plane_only=1
    bring_up
}
