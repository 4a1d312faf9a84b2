#!/usr/bin/env bash
# The main path, from a checkout to running agents: build, cluster, chart, Codex at work with a scripted model server, samples.
# Idempotent: a second run applies only changes. `make demo`, `make demo-down` and the tests call it.
# CLUSTER: the command of the local cluster (default: e2e/cluster/cluster). SPILLWAY_KUBECONFIG: use that cluster instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
started=$(date +%s)

step() { printf '\n== [%4ds] %s\n' $(($(date +%s) - started)) "$*"; }
inside() { "${cluster[@]}" run "$@"; }
# Helm's caches are in the checkout, so the demo leaves no files in the home folder.
helm_() { inside env HELM_CACHE_HOME="$PWD/target/helm" HELM_CONFIG_HOME="$PWD/target/helm" HELM_DATA_HOME="$PWD/target/helm" helm "$@"; }
# shellcheck source=e2e/codex/steps.sh
. e2e/codex/steps.sh
# shellcheck source=e2e/spent/steps.sh
. e2e/spent/steps.sh

up() {
    step "1/6 building the operator and its images (static; some minutes the first time)"
    # Build our programs and the cluster's at once, because each sometimes uses only one core.
    make --no-print-directory -j2 images images-models PROFILE=quick
    codex_image
    step "2/6 starting the local cluster"
    "${cluster[@]}" up
    codex_fits
    "${cluster[@]}" load target/images/spillway.tar target/images/demo-agent.tar
    if [ -z "$left_out" ]; then codex_load; else printf '\nCodex is left out: %s\n' "$left_out"; fi
    step "3/6 installing the chart: two replicas in namespace spillway-system"
    codex_values
    # The image's tag never changes here, so an annotation holds a digest of its content. New content replaces the pods.
    helm_ upgrade --install spillway charts/spillway --namespace spillway-system --create-namespace \
        --set image.repository=localhost/spillway/spillway --set image.tag=dev --values target/demo-values.json \
        --set-string "podAnnotations.image-content=$(sha256sum target/images/spillway.tar | cut -c1-16)" \
        --wait --timeout 5m > target/demo-helm.log || { tail -n 20 target/demo-helm.log >&2; troubles; }
    step "4/6 applying config/samples to namespace demo, and an agent whose commands hang"
    inside kubectl apply --server-side --force-conflicts -k config/samples
    inside kubectl apply --server-side --force-conflicts -k e2e/hanging
    if [ -z "$left_out" ]; then
        step "5/6 Codex: items in a queue, a pool that scales with its work, a program outside the sandbox, an agent that runs out of tokens"
        codex_before=$(codex_done)
        codex_apply
        codex_show || troubles
        spent_show || troubles
    else
        step "5/6 Codex is left out: $left_out. The rest of the demo continues"
    fi
    step "6/6 waiting until the pools are Ready and the sample work is done"
    inside kubectl -n demo wait --for=condition=Ready agentpools --all --timeout=5m || troubles
    inside kubectl -n demo wait --for=condition=Complete workitem/release-notes workitem/hanging-1 --timeout=5m || troubles
    printf '\nTen commands of one agent hung and were ended, each with all processes that it had started. The eleventh got this error:\n'
    inside kubectl -n demo get workitem hanging-1 -o jsonpath='{.status.result}' | sed 's/^/  /'
    printf '\nThen commands were tried again, the breaker closed, and the agent finished its item.\n'
    printf '\n'
    inside kubectl -n demo get agentpools
    printf '\n'
    inside kubectl -n demo get agents
    printf '\n'
    inside kubectl -n demo get workqueues
    printf '\n'
    inside kubectl -n demo get workitems
    step "done. Try these commands:"
    local run="e2e/cluster/cluster run"
    [ -z "${SPILLWAY_CLUSTER:-}" ] || run="SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER $run"
    cat <<T
  $run kubectl -n demo get agentpools,agents,pods
  $run kubectl -n demo describe agentpool free
  $run kubectl -n demo scale agentpool/free --replicas=5
  $run env PATH=$PWD/$(plugin_folder):\$PATH kubectl spillway ls -n demo
  $run bash                                    # a shell in the cluster
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

# Prints the cluster's own messages about the fault, and fails.
troubles() {
    echo; echo "The demo did not become ready. The cluster's objects, events and logs:" >&2
    { inside kubectl -n spillway-system get pods -o wide; inside kubectl -n spillway-system logs -l app.kubernetes.io/name=spillway --tail=15 --prefix
      inside kubectl -n demo get agentpools,agents,pods,workitems,budgets; inside kubectl -n demo events --types=Warning; } >&2 || true
    exit 1
}

down() {
    if [ -n "${SPILLWAY_KUBECONFIG:-}" ]; then
        # The operator removes the finalizer of Agents, so it must run until they are gone.
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
