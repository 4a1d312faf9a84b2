#!/usr/bin/env bash
# Installs a release as a user does, into a local cluster of its own: the node pulls the image of the operator from a registry, and Helm
# installs the chart from it. Then a pool runs, and the plugin of the archive shows its agents.
#
#   release/test.sh VERSION      after `make release`; needs root. `make release-test` calls it
#
# CLUSTER: the command of the local cluster. The registry runs in the network of the cluster, with the content that `make release` pushed.
# After a failure the cluster is kept.
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=release/checks.sh
source release/checks.sh
is_local || die "REGISTRY is $registry. This test needs the registry of a dry run"
[ -d "$stage/registry/content" ] || die "there is no registry of $version. Run: make release VERSION=$version"
export SPILLWAY_CLUSTER=${SPILLWAY_CLUSTER:-sw-release}
read -r -a cluster <<< "env ${CLUSTER:-e2e/cluster/cluster}"
work=$(mktemp -d)
server=''
finish() {
    local status=$?
    [ -z "$server" ] || { kill "$server" 2> /dev/null; wait "$server" 2> /dev/null || true; }
    if [ "$status" = 0 ]; then "${cluster[@]}" down; else
        echo "The cluster is kept: SPILLWAY_CLUSTER=$SPILLWAY_CLUSTER e2e/cluster/cluster run kubectl get all -A" >&2
    fi
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT

"${cluster[@]}" down > /dev/null # remains of a failed run
ETCD_FSYNC=off "${cluster[@]}" up
inside() { "${cluster[@]}" run "$@"; }
helm_() { inside env HELM_CACHE_HOME="$work" HELM_CONFIG_HOME="$work" HELM_DATA_HOME="$work" "$tools/helm" "$@"; }
# `run` replaces itself by the registry, so the process that is ended is the registry.
"${cluster[@]}" run release/registry.sh "$registry" "$PWD/$stage/registry" > "$stage/registry-test.log" 2>&1 &
server=$!
ready=0
for _ in $(seq 100); do
    if inside curl --silent --fail --output /dev/null "http://$registry/v2/"; then ready=1; break; fi
    sleep 0.1
done
[ $ready = 1 ] || die "the registry in the cluster's network does not answer: $(tail -n 3 "$stage/registry-test.log")"

digest=$(image_digest)
set +e
check "helm installs oci://$registry/charts/spillway $version" helm_ install spillway "oci://$registry/charts/spillway" --version "$version" \
    --plain-http --namespace spillway-system --create-namespace --wait --timeout 5m
check "controllers and gateways are available" inside kubectl -n spillway-system wait --for=condition=Available deployment --all --timeout=2m
pods() { inside kubectl get pods -n "$1" -o json | jq -r "$2"; }
check "all pods of the operator run the image of this release" equal "$registry/spillway@$digest" "$(pods spillway-system '[.items[].spec.containers[].image] | unique | join(" ")')"
check "the node pulled it by this digest" equal "$registry/spillway@$digest" "$(pods spillway-system '[.items[].status.containerStatuses[].imageID] | unique | join(" ")')"
check "helm has the version of the release" equal "spillway-$version $version" "$(helm_ list -n spillway-system -o json | jq -r '.[0].chart + " " + .[0].app_version')"

inside kubectl create namespace team > /dev/null
cat > "$work/pool.yaml" <<'Y'
apiVersion: spillway.dev/v1alpha1
kind: AgentPool
metadata: {name: free, namespace: team}
spec:
  type: free
  scaling: {min: 2, max: 2}
  agent:
    image: localhost/spillway/demo-agent:dev
    command: [/bin/demo-agent]
    resources: {limits: {cpu: 100m, memory: 32Mi}}
Y
check "a pool is accepted" inside kubectl apply -f "$work/pool.yaml"
check "the pool is ready" inside kubectl -n team wait --for=condition=Ready agentpool/free --timeout=3m
check "two agents run their program" inside kubectl -n team wait --for=jsonpath='{.status.phase}'=Idle agents --all --timeout=2m
check "there are two" equal 2 "$(inside kubectl -n team get agents -o name | wc -l)"
check "their sidecars run the image of this release" equal "$registry/spillway@$digest" \
    "$(pods team '[.items[].spec | .initContainers[]?, .containers[] | .image | select(contains("demo-agent") | not)] | unique | join(" ")')"

# The plugin, as Krew installs it
check "krew installs the plugin from its archive" env KREW_ROOT="$work/krew" "$tools/krew" install --manifest "$dist/spillway.krew.yaml" \
    --archive "$dist/kubectl-spillway-$tag-linux-amd64.tar.gz"
check "the plugin lists the agents" equal 2 "$(inside env PATH="$work/krew/bin:$PATH" kubectl-spillway ls -n team | grep -c '^free-')"

# The order of docs/how-to/install.md
check "the pool is deleted" inside kubectl -n team delete agentpool free --timeout=2m
check "its agents are gone" inside kubectl -n team wait --for=delete agents --all --timeout=2m
check "helm uninstalls the release" helm_ uninstall spillway -n spillway-system --wait --timeout 3m
set -e
sum_up
