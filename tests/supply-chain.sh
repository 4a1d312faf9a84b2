#!/usr/bin/env bash
# Every package from a registry in Cargo.lock or fuzz/Cargo.lock must be in supply-chain/reviewed.txt, with its version and
# checksum. So a person decides about each new dependency and each new version. This needs no network, and only awk.
#
#   tests/supply-chain.sh              fails where a package is missing, differs, or is listed and not used
#   tests/supply-chain.sh --test       tests of this script
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C

# used LOCK... : `name version checksum` of each package that is not our own, sorted. A package without a checksum (of a git
# repository) has its source in that place, which is never in the list.
used() {
    awk '
        function flush() { if (name != "" && source != "") print name, version, (checksum == "" ? source : checksum); name = version = source = checksum = "" }
        { value = $0; sub(/^[a-z]+ = "/, "", value); sub(/"$/, "", value) }
        /^\[\[package\]\]/ { flush() }
        /^name = / { name = value }
        /^version = "/ { version = value }
        /^source = / { source = value }
        /^checksum = / { checksum = value }
        END { flush() }' "$@" | sort -u
}

# judge LIST LOCK... : prints what is wrong, and fails
judge() {
    local list=$1 work wrong=0; shift
    work=$(mktemp -d)
    grep -vE '^(#|$)' "$list" > "$work/listed" || true
    if ! sort -c "$work/listed" 2> /dev/null; then echo "$list is not sorted (LC_ALL=C sort)"; wrong=1; fi
    if ! awk 'NF != 4 || $3 !~ /^[0-9a-f]+$/ || length($3) != 64 || ($4 != "initial" && $4 != "reviewed") { print FILENAME ": not `NAME VERSION SHA256 initial|reviewed`: " $0; wrong = 1 } END { exit wrong }' "$work/listed"; then wrong=1; fi
    cut -d' ' -f1-3 "$work/listed" | sort -u > "$work/known"
    for lock; do used "$lock"; done | sort -u > "$work/used"
    if [ ! -s "$work/used" ]; then echo "no packages in $*"; wrong=1; fi
    comm -13 "$work/known" "$work/used" > "$work/new"
    comm -23 "$work/known" "$work/used" > "$work/gone"
    if [ -s "$work/new" ]; then
        wrong=1
        echo "These packages are not in $list. Review each: its publisher, the changes since the listed version, its build script,"
        echo "unsafe code, and the files and network that it uses. Then add its line with the word \`reviewed\`:"
        while read -r name version checksum; do
            echo "  $name $version $checksum reviewed"
            echo "      listed version: $(awk -v name="$name" '$1 == name { printf "%s ", $2 }' "$work/known" | grep . || echo none); source: ${CARGO_HOME:-$HOME/.cargo}/registry/src/*/$name-$version, https://docs.rs/crate/$name/$version/source/"
        done < "$work/new"
    fi
    if [ -s "$work/gone" ]; then wrong=1; echo "These packages are in $list and are not used any more. Remove their lines:"; sed 's/^/  /' "$work/gone"; fi
    rm -rf "$work"
    return $wrong
}

tests() {
    local work failed=0 sum
    work=$(mktemp -d)
    sum=$(printf 'a%.0s' {1..64})
    # lock [SOURCE CHECKSUM] : a lock file with a package of ours, and one called x 1.0.0
    lock() { printf 'version = 4\n\n[[package]]\nname = "ours"\nversion = "0.1.0"\ndependencies = [\n "x",\n]\n\n[[package]]\nname = "x"\nversion = "1.0.0"\nsource = "%s"\n%s' "$1" "${2:+checksum = \"$2\"
}" > "$work/lock"; }
    # expect WHAT TEXT LINE... : the list of these lines is accepted (TEXT empty), or refused with TEXT
    expect() {
        local what=$1 text=$2 said; shift 2
        printf '%s\n' '# a comment' "$@" > "$work/list"
        if said=$(judge "$work/list" "$work/lock" 2>&1); then [ -z "$text" ] || { echo "FAIL $what: was accepted"; failed=1; return; }
        else [ -n "$text" ] && grep -qF -- "$text" <<<"$said" || { echo "FAIL $what: $said"; failed=1; return; }; fi
        echo "ok   $what"
    }
    lock registry+https://x "$sum"
    expect "what is listed is taken, and ours needs no line" "" "x 1.0.0 $sum reviewed"
    expect "a new package is named" "x 1.0.0 $sum reviewed" "# nothing"
    expect "a new version is named, with the one before" "listed version: 0.9.0" "x 0.9.0 $sum initial"
    expect "another content is another package" "x 1.0.0 $sum reviewed" "x 1.0.0 ${sum//a/b} initial"
    expect "what is not used any more is named" "y 1.0.0 $sum" "x 1.0.0 $sum initial" "y 1.0.0 $sum initial"
    expect "a line needs its word" "not \`NAME VERSION" "x 1.0.0 $sum"
    expect "the list is sorted" "is not sorted" "x 1.0.0 $sum initial" "a 1.0.0 $sum initial"
    lock git+https://x ""
    expect "a git repository is in no list" "x 1.0.0 git+https://x" "x 1.0.0 $sum initial"
    rm -rf "$work"
    return $failed
}

case ${1:-} in
    '') judge supply-chain/reviewed.txt Cargo.lock fuzz/Cargo.lock && echo "every dependency is in supply-chain/reviewed.txt ($(used Cargo.lock fuzz/Cargo.lock | wc -l))" ;;
    --test) tests ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
