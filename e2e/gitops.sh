#!/usr/bin/env bash
# A GitOps tool syncs the operator and the objects of a team from a git server to a real API server, on a cluster of its own, which is
# removed if the test passes. `make e2e-gitops` and `make e2e-flux` build what it needs and call it.
#
#   e2e/gitops.sh argocd      Argo CD's engine, as a library
#   e2e/gitops.sh flux        Flux's controllers, as processes, and a registry of charts
#
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). E2E_KEEP=1: keep the cluster in any case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tool=${1:-}
case $tool in
    argocd) test=TestSync ;;
    flux) test=TestFlux ;;
    *) sed -n '5,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-gitops}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
finish() {
    local status=$?
    if [ "$status" = 0 ] && [ "${E2E_KEEP:-}" != 1 ]; then "${cluster[@]}" down; else
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2
        [ "$tool" = argocd ] || echo "Logs of Flux: target/flux" >&2
    fi
    exit "$status"
}
trap finish EXIT

# The cluster has no network, so the test is built before.
program=$PWD/target/gitops.test
export PATH="$PATH:/usr/local/go/bin" GOTOOLCHAIN=auto
(cd tests/gitops && go test -c -o "$program" .)
if [ "$tool" = flux ]; then
    FLUX_PROGRAMS=$(realpath -ms "${SPILLWAY_CACHE:-$HOME/.cache/spillway}/tools/bin") FLUX_CRDS=$PWD/target/flux/crds FLUX_LOGS=$PWD/target/flux
    export FLUX_PROGRAMS FLUX_CRDS FLUX_LOGS
    rm -rf target/flux
    mkdir -p "$FLUX_CRDS"
    for module in tests/gitops/controllers/*/; do
        controller=$(basename "$module")
        folder=$(cd "$module" && go list -m -f '{{.Dir}}' "github.com/fluxcd/$controller")
        cp "$folder"/config/crd/bases/*.yaml "$FLUX_CRDS"
    done
fi
"${cluster[@]}" down > /dev/null # remains of a failed run
ETCD_FSYNC=off "${cluster[@]}" up
"${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar
# shellcheck disable=SC2016  # the cluster sets KUBECONFIG
"${cluster[@]}" run bash -c 'cd tests/gitops && GITOPS_KUBECONFIG=$KUBECONFIG exec "$0" -test.v -test.run "^$1\$"' "$program" $test
