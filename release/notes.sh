#!/usr/bin/env bash
# Prints the release notes of a version: its section of CHANGELOG.md, without the heading.
#
#   release/notes.sh VERSION [PAGES]      PAGES: the address of the repository's files at this version, for links to other files
#   release/notes.sh Unreleased [PAGES]   what the next release has so far
#   release/notes.sh --test               tests of this script
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# notes FILE VERSION PAGES
notes() {
    local text
    grep -qE "^## \[${2//./\\.}\]( |$)" "$1" || { echo "notes: $1 has no section [$2]" >&2; return 1; }
    text=$(awk -v heading="## [$2]" '
        /^## / { inside = (substr($0, 1, length(heading)) == heading); next }
        /^\[[^]]+\]: / { next }
        inside' "$1" | sed -e '/./,$!d')
    [ -n "$text" ] || { echo "notes: the section [$2] of $1 is empty" >&2; return 1; }
    # Links to files of the repository work on the page of a release only with the address of the files.
    [ -z "$3" ] || text=$(sed -E "s@\]\((https?://|mailto:)@](\x01\1@g; s@\]\(([^\x01#)])@](${3%/}/\1@g; s@\x01@@g" <<<"$text")
    printf '%s\n' "$text"
}

tests() {
    local work failed=0
    work=$(mktemp -d)
    cat > "$work/CHANGELOG.md" <<'C'
# Changelog

## [Unreleased]

### Added
- Something new.

## [0.2.0] - 2026-12-01

### Fixed
- A fault ([details](docs/fault.md#why), [site](https://example.com/a)).

## [0.2.0-rc.1] - 2026-11-01
- A candidate.

## [0.1.0] - 2026-01-01

[0.1.0]: https://example.com/0.1.0
C
    # expect NAME STATUS OUTPUT VERSION PAGES
    expect() {
        local got status=0
        got=$(notes "$work/CHANGELOG.md" "$4" "$5" 2>&1) || status=$?
        if [ "$status" = "$2" ] && [ "$got" = "$3" ]; then echo "ok   notes: $1"; else echo "FAIL notes: $1: status $status, printed: $got"; failed=1; fi
    }
    local fault=$'### Fixed\n- A fault ([details](docs/fault.md#why), [site](https://example.com/a)).'
    expect "one section, without others" 0 "$fault" 0.2.0 ''
    expect "links to files get an address" 0 "${fault/docs\//https://host/tree/v0.2.0/docs/}" 0.2.0 https://host/tree/v0.2.0/
    expect "a candidate is another version" 0 "- A candidate." 0.2.0-rc.1 ''
    expect "what is not released" 0 $'### Added\n- Something new.' Unreleased ''
    expect "a dot is no wildcard" 1 "notes: $work/CHANGELOG.md has no section [0.2x0]" 0.2x0 ''
    expect "a missing section fails" 1 "notes: $work/CHANGELOG.md has no section [0.3.0]" 0.3.0 ''
    expect "an empty section fails" 1 "notes: the section [0.1.0] of $work/CHANGELOG.md is empty" 0.1.0 ''
    rm -rf "$work"
    return "$failed"
}

case ${1:-} in
    --test) tests ;;
    '' | -*) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    *) notes CHANGELOG.md "$1" "${2:-}" ;;
esac
