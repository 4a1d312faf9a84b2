# shellcheck shell=bash disable=SC2034,SC2154  # the scripts that read this file use its variables, and it uses those of common.sh
# Read by the scripts that sign and verify, after common.sh: cosign with a key, without a transparency log.
cosign() { "$tools/cosign" "$@"; }

# use_key : sets $COSIGN_KEY, and $signing, the options of all signatures
use_key() {
    mkdir -p "$stage"
    if [ -z "${COSIGN_KEY:-}" ]; then
        ! is_tagged || die "COSIGN_KEY is not set. A key for tests signs only dry runs"
        export COSIGN_KEY=target/release-key/cosign.key COSIGN_PASSWORD=''
        if [ ! -e "$COSIGN_KEY" ]; then
            mkdir -p target/release-key
            cosign generate-key-pair --output-key-prefix target/release-key/cosign 2> /dev/null
        fi
    fi
    # Without services: no transparency log, no time stamps, no certificates. Without a file of roots, cosign would ask for those of Sigstore.
    cosign signing-config create --out "$stage/signing-config.json"
    cosign trusted-root create --out "$stage/trusted-root.json"
    signing=(--key "$COSIGN_KEY" --signing-config "$stage/signing-config.json" --trusted-root "$stage/trusted-root.json" --yes)
}
# The options of all verifications
verifying=(--key "$dist/cosign.pub" --insecure-ignore-tlog=true)
