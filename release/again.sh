#!/usr/bin/env bash
# Makes the files of a release again, from the same programs, in another folder, and compares them with the checksums of the first.
#
#   release/again.sh VERSION      after sign.sh
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=release/checks.sh
source release/checks.sh
sums=$PWD/$dist/SHA256SUMS
export RELEASE_DIST=target/release-$version-again/dist RELEASE_STAGE=target/release-$version-again/stage
rm -rf "target/release-$version-again"
mkdir -p "$RELEASE_DIST" "$RELEASE_STAGE"
for name in pages archives packages manifests images sbom; do "release/$name.sh" "$version" > /dev/null; done
set +e
while read -r file; do
    check "$file has the same bytes when it is made again" equal "$(awk -v file="$file" '$2 == file { print $1 }' "$sums")" "$(sha256 "$RELEASE_DIST/$file")"
done < <(cd "$RELEASE_DIST" && find . -type f -printf '%P\n' | sort)
check "all files but the key, the notes and the provenance are made again" equal "$(awk '{ print $2 }' "$sums" | grep -vE '^(cosign\.pub|NOTES\.md|.*\.provenance\.json)$' | sort)" \
    "$(cd "$RELEASE_DIST" && find . -type f -printf '%P\n' | sort)"
set -e
sum_up
rm -rf "target/release-$version-again"
