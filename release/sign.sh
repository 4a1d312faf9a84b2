#!/usr/bin/env bash
# Writes the checksums, the public key and the provenance of all files of a release, and signs checksums and provenance by cosign.
#
#   release/sign.sh VERSION      the last step before push.sh
#
# COSIGN_KEY: the private key, a file or an address that cosign knows; COSIGN_PASSWORD: its password. Without COSIGN_KEY a dry run makes
# a key for tests in target/release-key. No transparency log and no other service is asked, so a user needs only the public key.
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=release/cosign.sh
source release/cosign.sh
use_key

rm -f "$dist"/SHA256SUMS* "$dist"/*.provenance.json* "$dist/cosign.pub"
mapfile -t files < <(find "$dist" -maxdepth 1 -type f | sort)
[ ${#files[@]} -gt 0 ] || die "there are no files in $dist"
REGISTRY=$registry BASE_URL=$base_url release/provenance.py "$version" "$commit" "${files[@]}" > "$dist/spillway-$version.provenance.json"
cosign public-key --key "$COSIGN_KEY" > "$dist/cosign.pub" 2> /dev/null
(cd "$dist" && find . -maxdepth 1 -type f -printf '%f\n' | sort | xargs sha256sum) > "$stage/SHA256SUMS"
mv "$stage/SHA256SUMS" "$dist/SHA256SUMS"
cosign sign-blob "${signing[@]}" --bundle "$dist/SHA256SUMS.sigstore.json" "$dist/SHA256SUMS" > /dev/null
cosign attest-blob "${signing[@]}" --statement "$dist/spillway-$version.provenance.json" \
    --bundle "$dist/spillway-$version.provenance.json.sigstore.json" > /dev/null
say "signed the checksums of $(wc -l < "$dist/SHA256SUMS") files, and their provenance"
