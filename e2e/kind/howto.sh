#!/usr/bin/env bash
# Runs the commands of docs/how-to/kind.md, in their order, as they stand there. `make kind-howto` calls it.
# `docker build` and `kind create cluster` get the images that are made here, unless an engine of this machine is used and
# BASES=registry is set. Those are the only changes.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
page=docs/how-to/kind.md engine=e2e/docker/engine
work=$PWD/target/kind-howto
rm -rf "$work"; mkdir -p "$work/bin"

e2e/page-commands.sh "$page" > "$work/commands"
[ "$(wc -l < "$work/commands")" -ge 10 ] || { echo "$page has too few commands" >&2; exit 1; }

"$engine" up
"$engine" online
[ "${BASES:-local}" = registry ] || BASES=local e2e/docker/images bases spillway
SPILLWAY_BACKEND=kind e2e/cluster/cluster build > "$work/build.log" 2>&1 || { tail -n 20 "$work/build.log" >&2; exit 1; }
image=$(e2e/kind/node-image)
programs=$(SPILLWAY_BACKEND=kind e2e/cluster/cluster programs)
docker=$("$engine" run bash -c 'command -v docker')
ln -s "$programs"/{kubectl,helm} "$work/bin/"
arguments() { [ "${BASES:-local}" = registry ] || echo "--build-arg DEBIAN_IMAGE=localhost/spillway/base-debian:bookworm --build-arg RUST_IMAGE=localhost/spillway/base-rust:1.95"; }
cat > "$work/bin/docker" <<T
#!/bin/sh
if [ "\$1" = build ]; then shift; exec $docker build $(arguments) --build-arg PROFILE=${PROFILE:-release} "\$@"; fi
exec $docker "\$@"
T
cat > "$work/bin/kind" <<T
#!/bin/sh
if [ "\$1 \$2" = "create cluster" ]; then shift 2; exec $programs/kind create cluster --image $image "\$@"; fi
exec $programs/kind "\$@"
T
chmod 755 "$work"/bin/{docker,kind}

finish() {
    local status=$?
    "$engine" run "$programs/kind" delete cluster --name spillway --kubeconfig "$work/kubeconfig" >/dev/null 2>&1 || true
    "$engine" offline
    exit $status
}
trap finish EXIT
started=$SECONDS
# -v prints each command as it is read. A home of its own: nothing of the user's is changed.
"$engine" run env HOME="$work" KUBECONFIG="$work/kubeconfig" PATH="$work/bin:$PATH" bash -euv "$work/commands"
echo "every command of $page succeeded, in $((SECONDS - started)) s"
