#!/usr/bin/env bash
# Checks that all files name the version that is released. A commit with the tag of the version must also be clean and must have a
# section in CHANGELOG.md. Without the tag, the release is a dry run and this only says what is missing.
#
#   release/version.sh VERSION
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

wrong=()
cargo=$(sed -n '/^\[workspace\.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
[ "$cargo" = "$version" ] || wrong+=("Cargo.toml has version $cargo")
for field in version appVersion; do
    value=$(sed -n "s/^$field: \"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" charts/spillway/Chart.yaml)
    [ "$value" = "$version" ] || wrong+=("charts/spillway/Chart.yaml has $field $value")
done
[ ${#wrong[@]} = 0 ] || die "VERSION is $version, but $(printf '%s; ' "${wrong[@]}" | sed 's/; $//')"

missing=()
[ -z "$(git status --porcelain --untracked-files=normal)" ] || missing+=("files are changed since the commit")
release/notes.sh "$version" > /dev/null 2>&1 || missing+=("CHANGELOG.md has no section $version")
[[ $base_url != https://example.com/* ]] || missing+=("BASE_URL is not set")
! is_local || missing+=("REGISTRY is not set to one that others reach")
[ -z "${SKIP_BINARIES:-}" ] || missing+=("SKIP_BINARIES takes programs that may be of another commit")
if is_tagged; then
    [ ${#missing[@]} = 0 ] || die "the commit has the tag $tag, but $(printf '%s; ' "${missing[@]}" | sed 's/; $//')"
else
    missing+=("the commit has no tag $tag")
    say "this is a dry run: $(printf '%s; ' "${missing[@]}" | sed 's/; $//')"
fi
