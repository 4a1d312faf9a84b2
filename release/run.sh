#!/usr/bin/env bash
# Makes a release in target/release-VERSION, checks it, and pushes image and chart: to a registry that this script runs (a dry run), or to
# the one that REGISTRY names. Nothing else is published.
#
#   release/run.sh VERSION      `make release VERSION=...` calls it and builds the tools
#
# REGISTRY, BASE_URL, SOURCE_URL, COSIGN_KEY, COSIGN_PASSWORD, MAINTAINER, BUILDER_ID: docs/how-to/release.md
# SKIP_BINARIES=1: a dry run with the programs that the run before built
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

step() { local started=$SECONDS; "release/$1.sh" "$version"; say "$1: $((SECONDS - started)) s"; }
step version
rm -rf "$dist"
mkdir -p "$dist" "$stage"
[ -n "${SKIP_BINARIES:-}" ] || step binaries
for name in pages archives packages manifests images sbom; do step "$name"; done
if ! release/notes.sh "$version" "${SOURCE_URL:+$SOURCE_URL/blob/$tag}" > "$dist/NOTES.md" 2> /dev/null; then
    ! is_tagged || die "CHANGELOG.md has no section $version"
    release/notes.sh Unreleased "${SOURCE_URL:+$SOURCE_URL/blob/$tag}" > "$dist/NOTES.md"
fi
step sign
step check
step again

if is_local; then
    # The content stays, so that `make release-test` installs what was pushed here.
    rm -rf "$stage/registry"
    release/registry.sh "$registry" "$PWD/$stage/registry" > "$stage/registry.log" 2>&1 &
    server=$!
    trap 'kill "$server" 2> /dev/null; wait "$server" 2> /dev/null || true' EXIT
    for _ in $(seq 100); do
        ! curl --silent --fail --output /dev/null "http://$registry/v2/" || break
        kill -0 "$server" 2> /dev/null || { tail -n 5 "$stage/registry.log" >&2; die "the registry at $registry ended. Is the port in use? REGISTRY=localhost:PORT takes another one"; }
        sleep 0.1
    done
fi
step push
step verify
say "the files are in $dist; image and chart are in $registry"
