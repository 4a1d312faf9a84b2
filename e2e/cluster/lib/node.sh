# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# The node: containerd, its images, the kubelet and kube-proxy.

cni_bin() { local b; for b in /usr/lib/cni /opt/cni/bin; do if [ -x "$b/bridge" ]; then echo "$b"; return; fi; done; die "no CNI plugins (Debian: apt-get install containernetworking-plugins)"; }

start_containerd() {
    put "$D/cni/10-spillway.conflist" <<J
{"cniVersion": "1.0.0", "name": "spillway", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$D/cni-state"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
J
    put "$D/conf/containerd.toml" <<T
version = 3
root = "$D/containerd"
state = "$D/containerd-state"
[grpc]
  address = "$CRI"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "localhost/spillway/pause:dev"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true     # without CAP_SYS_RESOURCE runc cannot write a negative oom_score_adj, and no pod starts
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["$(cni_bin)"]
  conf_dir = "$D/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "$BIN/runc"
  SystemdCgroup = false
T
    start containerd env PATH="$BIN:$PATH:/usr/sbin:/sbin" "$BIN/containerd" --config "$D/conf/containerd.toml"
}

ctr() { "$BIN/ctr" --address "$CRI" -n k8s.io "$@"; }

# load_images FILE... : docker archives into the node's image store
load_images() {
    local f
    for f in "$@"; do
        [ -s "$f" ] || die "the image archive $f is missing or empty"
        ctr images import "$f" >> "$L/images.log" 2>&1 || { show_log images; die "containerd cannot import $f; see $L/images.log"; }
    done
}

load_own_images() {
    local dir
    wait_for containerd 30 ctr version
    dir=$(dirname "$(readlink "$BIN/pause")")
    if [ "$(cat "$D/images-loaded" 2>/dev/null)" = "$dir" ]; then return 0; fi
    load_images "$dir/pause.tar" "$dir/testbox.tar" "$dir/demo-agent.tar"
    echo "$dir" > "$D/images-loaded"
}

kubelet_since=0
start_kubelet() {
    local flags
    [ "$(state_of kubelet)" != dead ] || kubelet_since=$(date +%s)
    read -ra flags <<< "${KUBELET_FLAGS:-}"
    put "$D/conf/resolv.conf" <<< "nameserver $IP"            # only CoreDNS, because the network namespace has no route to the outside
    mkdir -p "$D/kubelet/seccomp/profiles"                    # root of seccompProfile.localhostProfile: <root-dir>/seccomp
    cp "$HERE"/seccomp/*.json "$D/kubelet/seccomp/profiles/"
    make_cgroups
    put "$D/conf/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $IP
healthzBindAddress: 127.0.0.1
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$NAME
failSwapOn: false
containerRuntimeEndpoint: unix://$CRI
tlsCertFile: $P/kubelet-server.crt
tlsPrivateKeyFile: $P/kubelet-server.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $P/ca.crt}}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: [$DNS_SVC]
resolvConf: $D/conf/resolv.conf
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
maxPods: 110
podLogsDir: $D/pod-logs
volumePluginDir: $D/kubelet/volume-plugins
syncFrequency: 10s
Y
    start kubelet env PATH="$PATH:/usr/sbin:/sbin" "$BIN/kubelet" --config="$D/conf/kubelet.yaml" --kubeconfig="$K/kubelet.conf" \
        --root-dir="$D/kubelet" --cert-dir="$D/kubelet/pki" --hostname-override="$NODE" --node-ip="$IP" "${flags[@]}"
}

start_proxy() {
    put "$D/conf/proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $K/proxy.conf}
hostnameOverride: $NODE
bindAddress: $IP
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
mode: ${PROXY_MODE:-nftables}
clusterCIDR: $POD_CIDR
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y
    start proxy env PATH="$PATH:/usr/sbin:/sbin" "$BIN/kube-proxy" --config="$D/conf/proxy.yaml"
}

# Ready, and reported by the kubelet that runs now: the last report of a dead kubelet stays in the API for 40 s.
node_ready() {
    local ready beat
    read -r ready _ beat <<< "$(kc get node "$NODE" -o jsonpath='{range .status.conditions[?(@.type=="Ready")]}{.status} at {.lastHeartbeatTime}{end}')"
    [ "$ready" = True ] && [ "$(date -d "$beat" +%s)" -ge "$kubelet_since" ]
}

wait_node() {
    wait_for kubelet 60 http_ok http://127.0.0.1:10248/healthz
    wait_for "kubelet node" 60 node_ready
    wait_for proxy 30 http_ok http://127.0.0.1:10256/healthz
}
