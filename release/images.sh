#!/usr/bin/env bash
# Makes the image of the operator for amd64 and arm64, as one OCI layout without Docker, and the chart that names this image by its digest.
#
#   release/images.sh VERSION      after binaries.sh. REGISTRY: where both will be pushed. Needs jq, and regctl and helm (`make release` builds these two)
#
# Writes spillway-image-VERSION.oci.tar and spillway-VERSION.tgz.
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mkdir -p "$dist"

created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
labels=()
for label in "title=spillway" "version=$version" "revision=$commit" "licenses=Apache-2.0" "url=$base_url" "created=$created"; do
    labels+=("org.opencontainers.image.$label")
done
rm -rf "$stage/images" "$layout"
mkdir -p "$stage/images"
build=ocidir://$stage/images/oci
references=()
for arch in "${LINUX[@]}"; do
    e2e/images/build.sh --out "$stage/images/$arch" --tag "$version" --arch "$arch" --binary "$(built "linux-$arch" spillway)" spillway > /dev/null
    "$tools/regctl" image import "$build:docker-$arch" "$stage/images/$arch/spillway.tar"
    "$tools/regctl" image mod "$build:docker-$arch" --create "$build:$arch" --to-oci --layer-compress gzip --config-time "set=$created" \
        "${labels[@]/#/--label=}" > /dev/null
    references+=(--ref "$build:$arch")
done
"$tools/regctl" index create "$build:$version" "${references[@]}" "${labels[@]/#/--annotation=}" > /dev/null
# Only the index and what it names
"$tools/regctl" image copy "$build:$version" "ocidir://$layout:$version" > /dev/null
# regctl writes the time of now into the list of the layout.
jq -c --arg created "$created" '.manifests[].annotations["org.opencontainers.image.created"] = $created' "$layout/index.json" > "$stage/index.json"
mv "$stage/index.json" "$layout/index.json"
reproducible_tar -C "$layout" -cf "$dist/spillway-image-$version.oci.tar" .
digest=$(image_digest)

# The chart names the image by its digest, so that a signature of the chart is one of the image too.
rm -rf "$stage/chart"
mkdir -p "$stage/chart"
cp -r charts/spillway "$stage/chart/spillway"
values=$stage/chart/spillway/values.yaml
sed -i -E "/^image:/,/^[a-z]/{s#^  repository: .*#  repository: $registry/spillway#; s#^  digest: .*#  digest: $digest#}" "$values"
[ "$(grep -cxE "  repository: $registry/spillway|  digest: $digest" "$values")" = 2 ] || die "cannot set the image in $values"
find "$stage/chart" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
# The files of `helm package` have the time of now, so its archive is packed again.
"$tools/helm" package "$stage/chart/spillway" --version "$version" --app-version "$version" --destination "$stage/chart" > /dev/null
mkdir "$stage/chart/packed"
# -m: the times in the archive are of now, and so may be in the future by a part of a second.
tar -xmzf "$stage/chart/spillway-$version.tgz" -C "$stage/chart/packed"
reproducible_tar -C "$stage/chart/packed" -cf - spillway | gzip -9n > "$dist/spillway-$version.tgz"
say "wrote the image $registry/spillway@$digest for ${LINUX[*]}, and the chart"
