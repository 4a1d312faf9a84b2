#!/usr/bin/env bash
# The main job, from a checkout to running agents: build, cluster, chart, Codex at work with a scripted provider, samples.
# Idempotent: a second run changes what changed. Called by `make demo` and `make demo-down`, and by the tests.
# CLUSTER: how to call the local cluster (default: e2e/cluster/cluster). SPILLWAY_KUBECONFIG: use that cluster instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
started=$(date +%s)

step() { printf '\n== [%4ds] %s\n' $(($(date +%s) - started)) "$*"; }
inside() { "${cluster[@]}" run "$@"; }
# Helm keeps its caches in the checkout's own folder: the demo leaves nothing in the home folder.
helm_() { inside env HELM_CACHE_HOME="$PWD/target/helm" HELM_CONFIG_HOME="$PWD/target/helm" HELM_DATA_HOME="$PWD/target/helm" helm "$@"; }
# shellcheck source=e2e/codex/steps.sh
. e2e/codex/steps.sh
# shellcheck source=e2e/spent/steps.sh
. e2e/spent/steps.sh

up() {
    step "1/6 building the operator and its images (static; some minutes the first time)"
    # Ours and the cluster's own programs at once: each has times at which it keeps one core only.
    make --no-print-directory -j2 images images-models PROFILE=quick
    codex_image
    step "2/6 starting the local cluster"
    "${cluster[@]}" up
    codex_fits
    "${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar
    if [ -z "$left_out" ]; then codex_load; else printf '\nCodex is left out: %s\n' "$left_out"; fi
    step "3/6 installing the chart: two replicas in namespace spillway-system"
    codex_values
    # The image's tag never changes here, so its content goes into an annotation: new content rolls the pods.
    helm_ upgrade --install spillway charts/spillway --namespace spillway-system --create-namespace \
        --set image.repository=localhost/spillway/spillway --set image.tag=dev --values target/demo-values.json \
        --set-string "podAnnotations.spillway\.dev/image-content=$(sha256sum target/images/spillway.tar | cut -c1-16)" \
        --wait --timeout 5m > target/demo-helm.log || { tail -n 20 target/demo-helm.log >&2; troubles; }
    step "4/6 applying config/samples to namespace demo, and an agent whose commands hang"
    inside kubectl apply --server-side --force-conflicts -k config/samples
    inside kubectl apply --server-side --force-conflicts -k e2e/hanging
    if [ -z "$left_out" ]; then
        step "5/6 Codex: items in a queue, a pool that goes from 0 to what there is to do and back, every token counted; an agent that runs out"
        codex_before=$(codex_done)
        codex_apply
        codex_show || troubles
        spent_show || troubles
    else
        step "5/6 Codex is left out: $left_out. Everything else goes on"
    fi
    step "6/6 waiting until the pools are Ready and the sample work is done"
    inside kubectl -n demo wait --for=condition=Ready agentpools --all --timeout=5m || troubles
    inside kubectl -n demo wait --for=condition=Complete workitem/release-notes workitem/hanging-1 --timeout=5m || troubles
    printf '\nTen commands of one agent hung and were ended, each with all that it had started. The eleventh was told:\n'
    inside kubectl -n demo get workitem hanging-1 -o jsonpath='{.status.result}' | sed 's/^/  /'
    printf '\nThen commands were tried again, the breaker closed, and the agent finished its item.\n'
    printf '\n'
    inside kubectl -n demo get agentpools
    printf '\n'
    inside kubectl -n demo get agents
    printf '\n'
    inside kubectl -n demo get workqueues,workitems
    step "done. Look around:"
    local run="e2e/cluster/cluster run"
    [ -z "${SPILLWAY_CLUSTER:-}" ] || run="SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER $run"
    cat <<T
  $run kubectl -n demo get agentpools,agents,pods
  $run kubectl -n demo describe agentpool free
  $run kubectl -n demo scale agentpool/free --replicas=5
  $run env PATH=$PWD/$(plugin_folder):\$PATH kubectl spillway ls -n demo
  $run bash                                    # a shell inside
T
    [ -n "$left_out" ] || cat <<T
  $run kubectl -n demo get budgets
  $run kubectl -n demo get workitem codex-4 -o yaml
T
    cat <<T
Remove the demo and the cluster: make demo-down
T
}

plugin_folder() { echo "target/$(rustc -vV | sed -n 's/^host: //p')/quick"; }

# What is wrong, in the cluster's own words; then fail.
troubles() {
    echo; echo "It did not become ready. What the cluster says:" >&2
    { inside kubectl -n spillway-system get pods -o wide; inside kubectl -n spillway-system logs -l app.kubernetes.io/name=spillway --tail=15 --prefix
      inside kubectl -n demo get agentpools,agents,pods,workitems,budgets; inside kubectl -n demo events --types=Warning; } >&2 || true
    exit 1
}

down() {
    if [ -n "${SPILLWAY_KUBECONFIG:-}" ]; then
        # Agents carry a finalizer that the operator takes off: first what it serves, then the operator.
        inside kubectl delete -k config/samples --ignore-not-found --timeout=2m
        inside kubectl delete namespace models --ignore-not-found --timeout=2m
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
