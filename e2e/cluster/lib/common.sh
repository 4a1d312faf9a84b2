# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# Settings, messages and the lock for the other files of lib/. ../cluster sources it. It changes nothing by itself.

REPO=$(cd "$HERE/../.." && pwd -P)
CACHE=${SPILLWAY_CACHE:-${HOME:-/root}/.cache/spillway}     # binaries and images, by content
STATE_ROOT=${SPILLWAY_STATE_ROOT:-/var/lib/spillway-e2e}    # state of clusters; not on an overlay file system (containerd's snapshots)

# By default each checkout has a cluster of its own.
NAME=${SPILLWAY_CLUSTER:-sw-$(printf %s "$REPO" | sha256sum | cut -c1-6)}
D=$STATE_ROOT/$NAME             # all files of this cluster; `down` removes it
P=$D/pki K=$D/kubeconfig L=$D/log
BIN=$D/bin                      # links to the cached binaries this cluster was started with
CRI=$D/containerd.sock
NODE=$NAME-node

# Addresses exist only inside the cluster's own network namespace, so every cluster may use the same ones.
IP=10.100.0.1
POD_CIDR=10.244.0.0/24 SVC_CIDR=10.96.0.0/16 API_SVC=10.96.0.1 DNS_SVC=10.96.0.10
# The optional S3 server. Its keys protect nothing.
S3_URL=http://$IP:7070 S3_REGION=us-east-1 S3_BUCKET=artifacts S3_ACCESS_KEY=spillway-test S3_SECRET_KEY=spillway-test-secret
# The optional forge. Its password protects nothing.
GITEA_URL=http://$IP:3000 GITEA_USER=spillway-test GITEA_PASSWORD=spillway-test-password GITEA_REPO=team/app

# Fixed paths of containerd, runc, CNI and the kubelet. They are bind-mounted from $D/private inside the cluster's mount
# namespace.
PRIVATE=(/run/netns /run/containerd /opt/containerd /var/lib/cni /var/lib/kubelet /var/log/containers)

T0=$(date +%s%N)
elapsed() { local ms=$((($(date +%s%N) - T0) / 1000000)); printf '%3d.%01ds' $((ms / 1000)) $((ms % 1000 / 100)); }
say() { echo "$*" >&2; }
die() { echo "cluster: $*" >&2; exit 1; }

check_name() {
    [[ $NAME =~ ^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$ ]] ||
        die "SPILLWAY_CLUSTER='$NAME' is not valid: use at most 40 characters of a-z, 0-9 and '-', with a letter or digit at both ends (the node, a cgroup and a network namespace get this name)"
}

need_root() {
    [ "$(id -u)" = 0 ] || die "'$1' needs root (namespaces, mounts, cgroups). Run: sudo env \"PATH=\$PATH\" \"HOME=\$HOME\" $HERE/cluster $1 ..."
}

# lock PATH WHAT : wait until no other call holds PATH, and hold it until this process ends (file descriptor 9).
# `down` removes the file while it holds the lock, so this checks that the path still names the locked file.
lock() {
    while :; do
        mkdir -p "${1%/*}"
        exec 9> "$1" || continue
        if ! flock -n 9; then
            say "another '$2' is running; waiting"
            flock -w 900 9 || die "another call has held the lock $1 for 15 min"
        fi
        [ "$1" -ef /proc/self/fd/9 ] && return 0
        exec 9>&-
    done
}
lock_cluster() { LOCK=$STATE_ROOT/.$NAME.lock; lock "$LOCK" "cluster up/down ($NAME)"; }

# put FILE : write standard input to FILE, unless FILE has this content already (kube-proxy exits when its config is written).
put() {
    local new
    new=$(cat)
    if [ -e "$1" ] && [ "$new" = "$(cat "$1")" ]; then return 0; fi
    printf '%s\n' "$new" > "$1"
}
