# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# The components, their states, and commands to use the cluster.

COMPONENTS=(holder etcd apiserver apiserver2 controller-manager scheduler containerd kubelet proxy netpol volumes coredns kwok s3 gitea)

status() {
    local c state bad=0 shown=0 version
    echo "cluster  $NAME"
    echo "state    $D"
    echo
    printf '%-20s %-7s %s\n' COMPONENT STATE PID
    for c in "${COMPONENTS[@]}"; do
        [ -e "$D/wanted/$c" ] || continue
        shown=1; state=$(state_of "$c")
        [ "$state" = alive ] || bad=1
        printf '%-20s %-7s %s\n' "$c" "$state" "$(pid_of "$c" || echo -)"
    done
    if [ $shown = 0 ]; then echo "(nothing was started)"; echo; echo "start    $HERE/cluster up"; return 1; fi
    echo
    if [ "$(state_of apiserver)" = alive ] && [ "$(state_of etcd)" = alive ]; then
        version=$(kc get --raw /version --request-timeout=5s 2>/dev/null | jq -r .gitVersion) || version=unknown
        echo "version  ${version:-unknown} (the API server's)"
        if [ -e "$D/wanted/kubelet" ]; then
            c=$(kc get node "$NODE" --request-timeout=5s -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null) || c=unknown
            version=$(kc get node "$NODE" --request-timeout=5s -o jsonpath='{.status.nodeInfo.kubeletVersion}, {.status.nodeInfo.containerRuntimeVersion}' 2>/dev/null) || version=unknown
            echo "node     $NODE ($version) $([ "$c" = True ] && echo Ready || echo "not ready (Ready=$c)")"
            [ "$c" = True ] || bad=1
        fi
        if [ -e "$D/wanted/kwok" ]; then echo "fake     $(kc get nodes -l type=kwok --request-timeout=5s -o name 2>/dev/null | wc -l) nodes"; fi
    fi
    echo "use      $HERE/cluster run kubectl get pods -A     (or: run bash)"
    echo "logs     $HERE/cluster logs COMPONENT     pods: $D/pod-logs     audit: $D/audit.log"
    if [ $bad != 0 ]; then echo "repair   $HERE/cluster up     (starts dead components, resumes paused ones)"; fi
    return $bad
}
