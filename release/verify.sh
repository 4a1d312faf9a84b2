#!/usr/bin/env bash
# Checks what push.sh made in a registry: the image for both architectures, the chart, their signatures, the provenance and the list of
# software.
#
#   release/verify.sh VERSION      REGISTRY as for push.sh
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=release/cosign.sh
source release/cosign.sh
# shellcheck source=release/checks.sh
source release/checks.sh
set +e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
plain=() insecure=()
if is_local; then plain=(--plain-http) insecure=(--allow-http-registry); fi

regctl() { "$tools/regctl" "$@"; }
digest=$(image_digest)
image=$registry/spillway
check "the tag $version is the image of this release" equal "$digest" "$(regctl image digest "$image:$version")"
chart=$registry/charts/spillway@$(regctl image digest "$registry/charts/spillway:$version")
HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm "$tools/helm" pull "oci://$registry/charts/spillway" --version "$version" "${plain[@]}" --destination "$work" > "$work/pull" 2>&1
check "helm pulls the chart of this release" cmp "$work/spillway-$version.tgz" "$dist/spillway-$version.tgz"

verify() { cosign verify "${verifying[@]}" "${insecure[@]}" "$1"; }
check "cosign verifies the image" verify "$image@$digest"
check "cosign verifies the image by its tag" verify "$image:$version"
check "cosign verifies the chart" verify "$chart"
for arch in "${LINUX[@]}"; do
    one=$(regctl image digest --platform "linux/$arch" "$image:$version")
    check "cosign verifies the image of $arch" verify "$image@$one"
done
COSIGN_PASSWORD='' cosign generate-key-pair --output-key-prefix "$work/foreign" > /dev/null 2>&1
refused "cosign refuses another key for the image" "failed to verify signature" cosign verify --key "$work/foreign.pub" --insecure-ignore-tlog=true "${insecure[@]}" "$image@$digest"
# A signature belongs to one repository. In a registry of other people no image is made for this test.
if is_local; then
    regctl image copy "$image:$version" "$registry/unsigned:$version" > /dev/null 2>&1
    refused "cosign refuses an image without a signature" "no signatures found" verify "$registry/unsigned@$digest"
fi

# attested TYPE FILTER : the predicate of this type, by a filter of jq
attested() { cosign verify-attestation "${verifying[@]}" "${insecure[@]}" --type "$1" "$image@$digest" 2> "$work/said" | head -n 1 | jq -r '.payload' | base64 -d | jq -r "$2" || cat "$work/said"; }
check "the provenance of the image names the commit" equal "$commit" "$(attested slsaprovenance1 '.predicate.buildDefinition.resolvedDependencies[0].digest.gitCommit')"
check "the list of software of the image is that of the files" equal "$(jq -r .documentNamespace "$dist/spillway-$version.spdx.json")" "$(attested spdxjson '.predicate.documentNamespace')"

sum_up
