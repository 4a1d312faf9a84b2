#!/usr/bin/env bash
# Both lock files are current. Fuzzing has a workspace of its own, so a new dependency of a crate makes its lock file stale, which nothing
# else says before the fuzz targets are built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for manifest in Cargo.toml fuzz/Cargo.toml; do
    said=$(cargo metadata --locked --format-version 1 --manifest-path "$manifest" 2>&1 > /dev/null) || {
        echo "the lock file beside $manifest is stale or cannot be read; write it: cargo metadata --manifest-path $manifest > /dev/null"
        echo "$said"
        exit 1
    }
done
echo "both lock files are current"
