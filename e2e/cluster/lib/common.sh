# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# Settings, messages and the lock that every other file of lib/ uses. Sourced by ../cluster, changes nothing by itself.

REPO=$(cd "$HERE/../.." && pwd -P)
CACHE=${SPILLWAY_CACHE:-${HOME:-/root}/.cache/spillway}     # binaries and images, by content
STATE_ROOT=${SPILLWAY_STATE_ROOT:-/var/lib/spillway-e2e}    # what clusters write; not on an overlay file system (containerd's snapshots)

# One cluster a checkout by default, so that two checkouts never meet.
NAME=${SPILLWAY_CLUSTER:-sw-$(printf %s "$REPO" | sha256sum | cut -c1-6)}
D=$STATE_ROOT/$NAME             # everything this cluster writes; `down` removes it
P=$D/pki K=$D/kubeconfig L=$D/log
BIN=$D/bin                      # links to the cached binaries this cluster was started with
CRI=$D/containerd.sock
NODE=$NAME-node

# Addresses exist only inside the cluster's own network namespace, so every cluster may use the same ones.
IP=10.100.0.1
POD_CIDR=10.244.0.0/24 SVC_CIDR=10.96.0.0/16 API_SVC=10.96.0.1 DNS_SVC=10.96.0.10

# Paths that containerd, runc, CNI and the kubelet do not let one choose:
# bind-mounted from $D/private inside the cluster's mount namespace.
PRIVATE=(/run/netns /run/containerd /opt/containerd /var/lib/cni /var/lib/kubelet /var/log/containers)

T0=$(date +%s%N)
elapsed() { local ms=$((($(date +%s%N) - T0) / 1000000)); printf '%3d.%01ds' $((ms / 1000)) $((ms % 1000 / 100)); }
say() { echo "$*" >&2; }
die() { echo "cluster: $*" >&2; exit 1; }

check_name() {
    [[ $NAME =~ ^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$ ]] ||
        die "SPILLWAY_CLUSTER='$NAME' is no good name: at most 40 of a-z, 0-9 and '-', beginning and ending with a letter or digit (it names the node, a cgroup and a network namespace)"
}

need_root() {
    [ "$(id -u)" = 0 ] || die "'$1' needs root (namespaces, mounts, cgroups). Run: sudo env \"PATH=\$PATH\" \"HOME=\$HOME\" $HERE/cluster $1 ..."
}

# lock PATH WHAT : wait until no other call holds PATH; held until this process ends (file descriptor 9).
# `down` removes the file while holding it, hence the check that what was locked is still what the path names.
lock() {
    while :; do
        mkdir -p "${1%/*}"
        exec 9> "$1" || continue
        if ! flock -n 9; then
            say "another '$2' is at work; waiting"
            flock -w 900 9 || die "waited 15 min for another call that holds $1"
        fi
        [ "$1" -ef /proc/self/fd/9 ] && return 0
        exec 9>&-
    done
}
lock_cluster() { LOCK=$STATE_ROOT/.$NAME.lock; lock "$LOCK" "cluster up/down ($NAME)"; }

# put FILE : write standard input to FILE, but leave an equal file alone (kube-proxy exits when its config is written).
put() {
    local new
    new=$(cat)
    if [ -e "$1" ] && [ "$new" = "$(cat "$1")" ]; then return 0; fi
    printf '%s\n' "$new" > "$1"
}
