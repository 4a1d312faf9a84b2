#!/usr/bin/env bash
# Installs a release as a user does, into a local cluster of its own, by the commands of docs/how-to/install.md, managed.md and
# air-gapped.md: cosign verifies the files and the image, the node pulls the image from a registry, and Helm installs the chart from it.
# The plugin of the archive shows the agents.
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
# `run` replaces itself by the registry, so the process that is ended is the registry.
"${cluster[@]}" run release/registry.sh "$registry" "$PWD/$stage/registry" > "$stage/registry-test.log" 2>&1 &
server=$!
ready=0
for _ in $(seq 100); do
    if inside curl --silent --fail --output /dev/null "http://$registry/v2/"; then ready=1; break; fi
    sleep 0.1
done
[ $ready = 1 ] || die "the registry in the cluster's network does not answer: $(tail -n 3 "$stage/registry-test.log")"

# The programs that the pages name. helm is told that this registry has no certificate, and that is the only change to the commands.
mkdir -p "$work/bin" "$work/files"
ln -s "$tools/regctl" "$tools/cosign" "$work/bin/"
cat > "$work/bin/helm" <<H
#!/bin/sh
case "\$*" in *oci://*) exec "$tools/helm" "\$@" --plain-http ;; *) exec "$tools/helm" "\$@" ;; esac
H
chmod +x "$work/bin/helm"
user=(env "HOME=$work" "VERSION=$version" "AGENT_IMAGE=$registry/demo-agent:$version")
# as_user COMMAND... : in the network of the cluster, with those programs and a home of its own
# shellcheck disable=SC2016  # the inner shell has the words
as_user() { inside "${user[@]}" bash -c 'PATH=$0/bin:$PATH; "$@"' "$work" "$@"; }
as_user regctl registry set "$registry" --tls disabled
e2e/images/build.sh --out "$work" demo-agent > /dev/null
as_user regctl image import "$registry/demo-agent:$version" "$work/demo-agent.tar"

# page FILE HEADING REGISTRY FOLDER : runs the commands of this part of the page, and stops at the first that fails
page() {
    local commands
    commands=$(e2e/page-commands.sh "docs/how-to/$1" "$2") || return 1
    as_user env "--chdir=$4" "REGISTRY=$3" bash -eu -c "$commands"
}
pods() { inside kubectl get pods -n "$1" -o json | jq -r "$2"; }
digest=$(image_digest)
set +e
check "the page install.md: From a release" page install.md "From a release" "$registry" "$PWD/$dist"
for part in "What the cluster must do" Install "Run agents"; do
    check "the page managed.md: $part" page managed.md "$part" "$registry" "$PWD"
done
check "all pods of the operator run the image of this release" equal "$registry/spillway@$digest" "$(pods spillway-system '[.items[].spec.containers[].image] | unique | join(" ")')"
check "the node pulled it by this digest" equal "$registry/spillway@$digest" "$(pods spillway-system '[.items[].status.containerStatuses[].imageID] | unique | join(" ")')"
check "helm has the version of the release" equal "spillway-$version $version" "$(as_user helm list -n spillway-system -o json | jq -r '.[0].chart + " " + .[0].app_version')"
check "two agents run their program" inside kubectl -n team wait --for=jsonpath='{.status.phase}'=Idle agents --all --timeout=2m
check "there are two" equal 2 "$(inside kubectl -n team get agents -o name | wc -l)"
check "their sidecars run the image of this release" equal "$registry/spillway@$digest" \
    "$(pods team '[.items[].spec | .initContainers[]?, .containers[] | .image | select(contains("demo-agent") | not)] | unique | join(" ")')"

# The plugin, as Krew installs it
check "krew installs the plugin from its archive" env KREW_ROOT="$work/krew" "$tools/krew" install --manifest "$dist/spillway.krew.yaml" \
    --archive "$dist/kubectl-spillway-$tag-linux-amd64.tar.gz"
check "the plugin lists the agents" equal 2 "$(inside env PATH="$work/krew/bin:$PATH" kubectl-spillway ls -n team | grep -c ' free-')"
check "the page managed.md: Remove it" page managed.md "Remove it" "$registry" "$PWD"

# The cluster's network has no egress. The image goes to another name, which the node has not pulled.
cp "$dist"/{cosign.pub,SHA256SUMS,SHA256SUMS.sigstore.json} "$dist/spillway-$version.tgz" "$dist/spillway-image-$version.oci.tar" "$work/files/"
for part in "Bring the files in" Install; do
    check "the page air-gapped.md: $part" page air-gapped.md "$part" "$registry/inside" "$work/files"
done
check "all pods of the operator run the image from inside" equal "$registry/inside/spillway@$digest" "$(pods spillway-system '[.items[].spec.containers[].image] | unique | join(" ")')"
check "the page air-gapped.md: Remove it" page air-gapped.md "Remove it" "$registry/inside" "$work/files"
set -e
sum_up
