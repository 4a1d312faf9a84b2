#!/usr/bin/env bash
# The main job, from a checkout to running agents: build, cluster, chart, samples. Idempotent: a second run changes what
# changed. Called by `make demo` and `make demo-down`, and by the tests.
# CLUSTER: how to call the local cluster (default: e2e/cluster/cluster). SPILLWAY_KUBECONFIG: use that cluster instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
started=$(date +%s)

step() { printf '\n== [%4ds] %s\n' $(($(date +%s) - started)) "$*"; }
inside() { "${cluster[@]}" run "$@"; }
# Helm keeps its caches in the checkout's own folder: the demo leaves nothing in the home folder.
helm_() { inside env HELM_CACHE_HOME="$PWD/target/helm" HELM_CONFIG_HOME="$PWD/target/helm" HELM_DATA_HOME="$PWD/target/helm" helm "$@"; }

up() {
    step "1/5 building the operator and its images (static; some minutes the first time)"
    make --no-print-directory images
    step "2/5 starting the local cluster"
    "${cluster[@]}" up
    "${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar
    step "3/5 installing the chart: two replicas in namespace spillway-system"
    # The image's tag never changes here, so its content goes into an annotation: new content rolls the pods.
    helm_ upgrade --install spillway charts/spillway --namespace spillway-system --create-namespace \
        --set image.repository=localhost/spillway/spillway --set image.tag=dev \
        --set-string "podAnnotations.spillway\.dev/image-content=$(sha256sum target/images/spillway.tar | cut -c1-16)" \
        --wait --timeout 5m > target/demo-helm.log || { tail -n 20 target/demo-helm.log >&2; troubles; }
    step "4/5 applying config/samples to namespace demo"
    inside kubectl apply --server-side --force-conflicts -k config/samples
    step "5/5 waiting until the pools are Ready"
    inside kubectl -n demo wait --for=condition=Ready agentpools --all --timeout=5m || troubles
    printf '\n'
    inside kubectl -n demo get agentpools
    printf '\n'
    inside kubectl -n demo get agents
    step "done. Look around:"
    local run="e2e/cluster/cluster run"
    [ -z "${SPILLWAY_CLUSTER:-}" ] || run="SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER $run"
    cat <<T
  $run kubectl -n demo get agentpools,agents,pods
  $run kubectl -n demo describe agentpool free
  $run kubectl -n demo scale agentpool/free --replicas=5
  $run env PATH=$PWD/$(plugin_folder):\$PATH kubectl spillway ls -n demo
  $run bash                                    # a shell inside
Remove the demo and the cluster: make demo-down
T
}

plugin_folder() { echo "target/$(rustc -vV | sed -n 's/^host: //p')/release"; }

# What is wrong, in the cluster's own words; then fail.
troubles() {
    echo; echo "It did not become ready. What the cluster says:" >&2
    { inside kubectl -n spillway-system get pods -o wide; inside kubectl -n spillway-system logs -l app.kubernetes.io/name=spillway --tail=15 --prefix
      inside kubectl -n demo get agentpools,agents,pods; inside kubectl -n demo events --types=Warning; } >&2 || true
    exit 1
}

down() {
    if [ -n "${SPILLWAY_KUBECONFIG:-}" ]; then
        # Agents carry a finalizer that the operator takes off: first what it serves, then the operator.
        inside kubectl delete -k config/samples --ignore-not-found --timeout=2m
        helm_ uninstall spillway --namespace spillway-system --ignore-not-found --wait
    else
        "${cluster[@]}" down
    fi
}

case ${1:-} in
    up) up ;;
    down) down ;;
    *) echo "Usage: $0 up|down" >&2; exit 2 ;;
esac
