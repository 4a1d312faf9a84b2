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
        jq -S --arg created "$created" --arg namespace "https://spillway.dev/spdx/$package-$version-$commit" --arg root "SPDXRef-Package-$package-$version" '
            .creationInfo.created = $created | .documentNamespace = $namespace
            # Names of registries are no addresses. The purl of a package says where it comes from.
            | .packages |= (map(if .downloadLocation | startswith("registry+") then .downloadLocation = "NOASSERTION" else . end) | sort_by(.SPDXID))
            # cargo-sbom lists Cargo.lock as the file of each program, twice by one name.
            | del(.files) | .relationships |= (map(select([.spdxElementId, .relatedSpdxElement] | any(startswith("SPDXRef-File-")) | not))
                + [{spdxElementId: "SPDXRef-DOCUMENT", relationshipType: "DESCRIBES", relatedSpdxElement: $root}]
                | sort_by(.spdxElementId, .relatedSpdxElement, .relationshipType) | unique)' > "$dist/$package-$version.spdx.json"
done
say "wrote two lists of software"
