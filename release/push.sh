#!/usr/bin/env bash
# Pushes the image and the chart to a registry, signs both there, and attaches the provenance and the list of software to the image.
#
#   release/push.sh VERSION      after sign.sh. REGISTRY: where to push; COSIGN_KEY as in sign.sh
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=release/cosign.sh
source release/cosign.sh
use_key

digest=$(image_digest)
image=$registry/spillway plain=() insecure=()
if is_local; then
    plain=(--plain-http) insecure=(--allow-http-registry)
    "$tools/regctl" registry set "$registry" --tls disabled
fi
"$tools/regctl" image copy "ocidir://$layout:$version" "$image:$version" > /dev/null
pushed=$("$tools/regctl" image digest "$image:$version")
[ "$pushed" = "$digest" ] || die "the registry has $pushed as $image:$version, and not $digest"
"$tools/helm" push "$dist/spillway-$version.tgz" "oci://$registry/charts" "${plain[@]}" > "$stage/helm-push" 2>&1 || die "$(cat "$stage/helm-push")"
chart=$registry/charts/spillway@$("$tools/regctl" image digest "$registry/charts/spillway:$version")

cosign sign "${signing[@]}" "${insecure[@]}" --recursive "$image@$digest"
cosign sign "${signing[@]}" "${insecure[@]}" "$chart"
REGISTRY=$registry BASE_URL=$base_url release/provenance.py "$version" "$commit" > "$stage/provenance-predicate.json"
cosign attest "${signing[@]}" "${insecure[@]}" --type slsaprovenance1 --predicate "$stage/provenance-predicate.json" "$image@$digest"
cosign attest "${signing[@]}" "${insecure[@]}" --type spdxjson --predicate "$dist/spillway-$version.spdx.json" "$image@$digest"
say "pushed and signed $image@$digest and $chart"
