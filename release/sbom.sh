#!/usr/bin/env bash
# Writes the lists of the software that is linked into the programs, in SPDX 2.3: one for the operator and the programs of pods, one for
# the plugin.
#
#   release/sbom.sh VERSION      Needs cargo-sbom (`make release` builds it) and jq
#
# cargo-sbom writes the time of now and a random namespace. They are replaced, so that the same commit gives the same bytes.
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need jq jq

created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
for package in spillway kubectl-spillway; do
    PATH="$tools:$PATH" cargo sbom --cargo-package "$package" --output-format spdx_json_2_3 |
        jq -S --arg created "$created" --arg namespace "https://spillway.dev/spdx/$package-$version-$commit" '
            .creationInfo.created = $created | .documentNamespace = $namespace
            | .packages |= sort_by(.SPDXID) | .relationships |= (sort_by(.spdxElementId, .relatedSpdxElement, .relationshipType) | unique)
            | if .files then .files |= sort_by(.SPDXID) else . end' > "$dist/$package-$version.spdx.json"
done
say "wrote two lists of software"
