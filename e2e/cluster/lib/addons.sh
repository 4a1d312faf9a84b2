# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# Additions to the node: NetworkPolicy, PersistentVolumes, CoreDNS (optional), KWOK's fake nodes (optional), an S3 server
# (optional), a forge (optional).

role() { # NAME RULES : a ClusterRole for user e2e:NAME and its binding
    cat <<Y
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "e2e:$1"}
rules:
$2
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "e2e:$1"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "e2e:$1"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "e2e:$1"}]
---
Y
}

start_netpol() {
    local flags
    # With --pod-cidr policies hold from a pod's first packet. With NETPOL_FLAGS= (empty) the first 20 to 40 ms are open, as with
    # common network plugins.
    read -ra flags <<< "${NETPOL_FLAGS---pod-cidr=$POD_CIDR}"
    role netpol '- {apiGroups: [""], resources: [pods, namespaces], verbs: [list, watch]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [list, watch]}' |
        kc apply --server-side -f - > "$L/netpol-objects.log" 2>&1 || { show_log netpol-objects; die "the API server refused the role of netpol"; }
    start netpol env PATH="$PATH:/usr/sbin:/sbin" "$BIN/netpol" --kubeconfig="$K/netpol.conf" "${flags[@]}"
    wait_for netpol 10 in_net nft list table ip netpol
}

# PersistentVolumes are folders under $D/volumes. `standard` is the default class, as in most small clusters.
start_volumes() {
    mkdir -p "$D/volumes"
    { role volumes '- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [list, watch]}
- {apiGroups: [""], resources: [persistentvolumes], verbs: [list, watch, create, delete]}'
        cat <<Y
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: spillway.dev/e2e-local
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
Y
    } | kc apply --server-side -f - > "$L/volumes-objects.log" 2>&1 || { show_log volumes-objects; die "the API server refused the objects of volumes"; }
    start volumes "$BIN/volumes" --kubeconfig="$K/volumes.conf" --dir="$D/volumes"
}

start_dns() {
    put "$D/conf/Corefile" <<C
.:53 {
    bind $IP
    errors
    health 127.0.0.1:9154
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig $K/coredns.conf
        pods insecure
    }
    cache 5
}
C
    { role coredns '- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}'
        cat <<Y
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: $DNS_SVC
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-host, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: ["$IP"], conditions: {ready: true}}]
Y
    } | kc apply --server-side -f - > "$L/dns-objects.log" 2>&1 || { show_log dns-objects; die "the API server refused the objects of DNS"; }
    start coredns "$BIN/coredns" -conf "$D/conf/Corefile"
    wait_for coredns 30 http_ok http://127.0.0.1:8181/ready
}

# `kubectl wait` would ask for one node after the other, which takes 10 s for a hundred.
fake_nodes_ready() { [ "$(kc get nodes -l type=kwok --no-headers | awk '$2 ~ /^Ready/' | wc -l)" -ge "$1" ]; }

# start_kwok NODES : KWOK, and at least NODES fake nodes (missing ones are added, none is removed)
start_kwok() {
    local flags have i
    read -ra flags <<< "${KWOK_FLAGS:-}"
    start kwok "$BIN/kwok" --kubeconfig="$K/admin.conf" --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake \
        --cidr=10.250.0.0/16 --node-ip="$IP" --node-lease-duration-seconds=40 --server-address=127.0.0.1:10247 \
        --config="$BIN/kwok-stages.yaml" "${flags[@]}"
    wait_for kwok 20 http_ok http://127.0.0.1:10247/healthz
    [ "$1" -gt 0 ] || return 0
    have=$(kc get nodes -l type=kwok -o name)
    for ((i = 1; i <= $1; i++)); do
        ! grep -qx "node/fake$i" <<< "$have" || continue
        cat <<Y
---
apiVersion: v1
kind: Node
metadata: {name: fake$i, annotations: {kwok.x-k8s.io/node: fake}, labels: {type: kwok, kubernetes.io/hostname: fake$i}}
spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
status: {allocatable: {cpu: "32", memory: 256Gi, ephemeral-storage: 1Ti, pods: "110"}, capacity: {cpu: "32", memory: 256Gi, ephemeral-storage: 1Ti, pods: "110"}}
Y
    done > "$D/kwok-nodes.yaml"
    if [ -s "$D/kwok-nodes.yaml" ]; then
        kc create -f "$D/kwok-nodes.yaml" > "$L/kwok-nodes.log" 2>&1 || { show_log kwok-nodes; die "the API server refused the fake nodes"; }
    fi
    wait_for "kwok nodes ($1, label type=kwok, taint kwok.x-k8s.io/node)" 120 fake_nodes_ready "$1"
}

# curl in Debian 12 signs the header x-amz-content-sha256 but does not add it, and the server demands it.
s3_request() {
    http_ok --aws-sigv4 "aws:amz:$S3_REGION:s3" --user "$S3_ACCESS_KEY:$S3_SECRET_KEY" -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$@"
}
s3_bucket_ok() { s3_request --head "$S3_URL/$S3_BUCKET" || s3_request -X PUT "$S3_URL/$S3_BUCKET"; }

# Buckets are folders under $D/s3/data, objects are files with extended attributes.
# With --iam-dir the server refuses an unknown access key as S3 does (403 InvalidAccessKeyId); without it the answer is 404.
start_s3() {
    local flags
    read -ra flags <<< "${S3_FLAGS:-}"
    mkdir -p "$D"/s3/{data,iam}
    start s3 env ROOT_ACCESS_KEY="$S3_ACCESS_KEY" ROOT_SECRET_KEY="$S3_SECRET_KEY" "$BIN/versitygw" --port "${S3_URL#http://}" \
        --region "$S3_REGION" --keep-alive --iam-dir "$D/s3/iam" "${flags[@]}" posix "$D/s3/data"
    wait_for "s3 ($S3_URL, bucket $S3_BUCKET)" 20 s3_bucket_ok
}

# Makes what is missing: the administrator, the token, the organization and the repository.
gitea_ok() {
    local api=$GITEA_URL/api/v1 g=("$BIN/gitea" --config "$D/conf/gitea.ini") post
    http_ok "$GITEA_URL/api/healthz" || return 1
    http_ok "$api/users/$GITEA_USER" || "${g[@]}" admin user create --admin --must-change-password=false --username "$GITEA_USER" \
        --password "$GITEA_PASSWORD" --email "$GITEA_USER@spillway.invalid" >> "$L/gitea-setup.log" 2>&1 || return 1
    # Gitea writes lines of its log to the standard output too.
    [ -s "$D/gitea/token" ] || "${g[@]}" admin user generate-access-token --raw --username "$GITEA_USER" --token-name "cluster-$(date +%s%N)" \
        2>> "$L/gitea-setup.log" | grep -xE '[0-9a-f]{40}' > "$D/gitea/token" || return 1
    post=(-H "Authorization: token $(cat "$D/gitea/token")" -H 'Content-Type: application/json' -d)
    http_ok "$api/orgs/${GITEA_REPO%/*}" || http_ok "${post[@]}" "{\"username\": \"${GITEA_REPO%/*}\"}" "$api/orgs" || return 1
    http_ok "$api/repos/$GITEA_REPO" || http_ok "${post[@]}" "{\"name\": \"${GITEA_REPO#*/}\"}" "$api/orgs/${GITEA_REPO%/*}/repos"
}

# Everything of it is under $D/gitea. The secrets are set because Gitea would add missing ones to the file.
# It has no built frontend: its pages lack style and scripts.
# Without WAL the first start takes 7 s on a busy machine, with it 1 s.
start_gitea() {
    mkdir -p "$D/gitea"; chmod 700 "$D/gitea"
    put "$D/conf/gitea.ini" <<C
WORK_PATH = $D/gitea
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
[server]
HTTP_ADDR = $IP
HTTP_PORT = ${GITEA_URL##*:}
ROOT_URL = $GITEA_URL/
STATIC_ROOT_PATH = $BIN/gitea-static
OFFLINE_MODE = true
LFS_START_SERVER = false
DISABLE_SSH = true
SSH_CREATE_AUTHORIZED_KEYS_FILE = false
SSH_ROOT_PATH = $D/gitea/ssh
[database]
DB_TYPE = sqlite3
PATH = $D/gitea/gitea.db
SQLITE_JOURNAL_MODE = WAL
[security]
INSTALL_LOCK = true
SECRET_KEY = spillway-test-secret
INTERNAL_TOKEN = spillway-test-internal-token
[oauth2]
ENABLED = false
JWT_SECRET = $(printf %043d 0)
[service]
DISABLE_REGISTRATION = true
[indexer]
ISSUE_INDEXER_TYPE = db
[log]
MODE = console
LEVEL = Warn
logger.access.MODE = access
[log.access]
MODE = console
LEVEL = Info
C
    start gitea "$BIN/gitea" --config "$D/conf/gitea.ini" web
    wait_for "gitea ($GITEA_URL, repository $GITEA_REPO)" 60 gitea_ok
}
