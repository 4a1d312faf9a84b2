# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# etcd, API server(s), controller-manager and scheduler.

start_etcd() {
    local flags
    read -ra flags <<< "${ETCD_FLAGS:-}"
    [ "${ETCD_FSYNC:-on}" != off ] || flags+=(--unsafe-no-fsync)
    start etcd "$BIN/etcd" --data-dir="$D/etcd" --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
        --listen-peer-urls=http://127.0.0.1:2380 --log-level=warn "${flags[@]}"
}

# Logs every write once, with its user and user agent, because tests count writes. Reads and reviews are logged only of the accounts whose
# calls e2e/rights.sh judges.
write_audit_policy() {
    put "$D/conf/audit-policy.yaml" <<'Y'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:spillway-e2e", "system:serviceaccounts:spillway-system"]
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - {group: authentication.k8s.io}
  - {group: authorization.k8s.io}
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
Y
}

# start_apiserver NAME PORT AUDIT_LOG [FLAG...]
start_apiserver() {
    local name=$1 port=$2 audit=$3 flags; shift 3
    read -ra flags <<< "${APISERVER_FLAGS:-}"
    start "$name" "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address="$IP" --secure-port="$port" --advertise-address="$IP" \
        --service-cluster-ip-range="$SVC_CIDR" --authorization-mode=Node,RBAC --allow-privileged=true \
        --enable-admission-plugins=NodeRestriction --client-ca-file="$P/ca.crt" \
        --tls-cert-file="$P/apiserver.crt" --tls-private-key-file="$P/apiserver.key" \
        --kubelet-certificate-authority="$P/ca.crt" --kubelet-preferred-address-types=InternalIP,Hostname \
        --kubelet-client-certificate="$P/apiserver-kubelet-client.crt" --kubelet-client-key="$P/apiserver-kubelet-client.key" \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --service-account-key-file="$P/sa.pub" --service-account-signing-key-file="$P/sa.key" \
        --requestheader-client-ca-file="$P/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
        --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
        --requestheader-extra-headers-prefix=X-Remote-Extra- \
        --proxy-client-cert-file="$P/front-proxy-client.crt" --proxy-client-key-file="$P/front-proxy-client.key" \
        --audit-policy-file="$D/conf/audit-policy.yaml" --audit-log-path="$audit" --audit-log-mode=blocking \
        --audit-log-maxsize=4096 --audit-log-maxbackup=1 "$@" "${flags[@]}"
}

start_control_plane() {
    local flags k
    write_audit_policy
    start_etcd
    wait_for etcd 30 http_ok http://127.0.0.1:2379/health
    start_apiserver apiserver 6443 "$D/audit.log"
    wait_for apiserver 60 api_ok
    read -ra flags <<< "${KCM_FLAGS:-}"
    k=$K/controller-manager.conf
    # With its default of 20 queries a second it takes 5 s for its service accounts and 25 s for 500 pods.
    start controller-manager "$BIN/kube-controller-manager" --kubeconfig="$k" --authentication-kubeconfig="$k" --authorization-kubeconfig="$k" \
        --bind-address=127.0.0.1 --root-ca-file="$P/ca.crt" --service-account-private-key-file="$P/sa.key" \
        --cluster-signing-cert-file="$P/ca.crt" --cluster-signing-key-file="$P/ca.key" \
        --use-service-account-credentials=true --leader-elect=false --allocate-node-cidrs=false \
        --kube-api-qps=300 --kube-api-burst=600 "${flags[@]}"
    k=$K/scheduler.conf
    start scheduler "$BIN/kube-scheduler" --kubeconfig="$k" --authentication-kubeconfig="$k" --authorization-kubeconfig="$k" \
        --bind-address=127.0.0.1 --leader-elect=false --kube-api-qps=300 --kube-api-burst=600
}

wait_control_plane() {
    wait_for controller-manager 30 http_ok https://127.0.0.1:10257/healthz
    wait_for scheduler 30 http_ok https://127.0.0.1:10259/healthz
    # Health is not enough: until this account exists no pod can be created.
    wait_for "controller-manager serviceaccount" 30 kc -n default get serviceaccount default
}

# A second API server on the same etcd. The first one keeps the endpoints of Service `kubernetes`, because both have the same
# address.
apiserver2() {
    case ${1:-up} in
        up)
            [ "$(state_of etcd)" = alive ] || die "the cluster is not up. Run: $HERE/cluster up"
            start_apiserver apiserver2 6444 "$D/audit2.log" --endpoint-reconciler-type=none
            wait_for apiserver2 60 api_ok 6444
            say "a second API server answers on https://$IP:6444; its audit log is $D/audit2.log; its kubeconfig:"
            echo "$K/admin2.conf"
            ;;
        down)
            rm -f "$D/wanted/apiserver2"
            if [ "$(state_of apiserver2)" != dead ]; then signal_component apiserver2 TERM; fi
            ;;
        *) die "apiserver2 takes 'up' (default) or 'down'" ;;
    esac
}
