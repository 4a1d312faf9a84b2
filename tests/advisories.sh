#!/usr/bin/env bash
# Known vulnerabilities of dependencies: `cargo deny check advisories`, if the RustSec database can be fetched. It is a git
# repository (deny.toml names it). If it cannot be fetched and there is no earlier copy, this prints a line and passes, so that
# a machine without that network can run the tests. With ADVISORIES=required it then fails.
#
#   tests/advisories.sh
#   tests/advisories.sh --test         tests of this script
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

advisories() {
    local why
    why=$(mktemp)
    if timeout 120 cargo deny fetch db > "$why" 2>&1; then
        rm -f "$why"
        cargo deny --all-features check --disable-fetch advisories
    elif compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*/" > /dev/null; then
        echo "advisories: the RustSec database cannot be fetched ($(reason "$why")), so an earlier copy of it is used" >&2
        rm -f "$why"
        cargo deny --all-features check --disable-fetch advisories
    else
        echo "advisories: NOT CHECKED: the RustSec database cannot be fetched ($(reason "$why")), and there is no earlier copy of it" >&2
        rm -f "$why"
        [ "${ADVISORIES:-}" != required ]
    fi
}
reason() { { grep -v '^ *$' "$1" || echo "no answer in two minutes"; } | tail -n 1 | cut -c1-200; }

tests() {
    local work failed=0
    work=$(mktemp -d)
    mkdir "$work/bin"
    # A fake cargo: FETCH and CHECK are the exit codes of its commands.
    printf '#!/bin/sh\necho "$*" >> "$CALLS"\ncase "$*" in "deny fetch db") echo "cannot reach github.com"; exit "$FETCH" ;; *" check --disable-fetch advisories") exit "$CHECK" ;; esac\nexit 9\n' > "$work/bin/cargo"
    chmod +x "$work/bin/cargo"
    # expect WHAT STATUS CALLS TEXT FETCH CHECK COPY [VARIABLE] : checks the exit status, the number of cargo's calls, the output
    expect() {
        local what=$1 status=$2 calls=$3 text=$4 said got=0
        rm -rf "$work/home" "$work/calls"; mkdir "$work/home"
        [ "$7" = no ] || mkdir -p "$work/home/advisory-dbs/github.com-1"
        said=$(env PATH="$work/bin:$PATH" CARGO_HOME="$work/home" CALLS="$work/calls" FETCH="$5" CHECK="$6" ADVISORIES= ${8:+"$8"} tests/advisories.sh 2>&1) || got=$?
        if [ "$got" = "$status" ] && [ "$(wc -l < "$work/calls")" = "$calls" ] && grep -qF -- "$text" <<<"$said"; then echo "ok   $what"
        else echo "FAIL $what: ended with $got: $said"; failed=1; fi
    }
    expect "no advisory" 0 2 "" 0 0 no
    expect "an advisory fails" 1 2 "" 0 1 no
    expect "without a database it says so and passes" 0 1 "NOT CHECKED: the RustSec database cannot be fetched (cannot reach github.com)" 1 0 no
    expect "unless it must be checked" 1 1 "NOT CHECKED" 1 0 no ADVISORIES=required
    expect "a copy from before is used" 0 2 "an earlier copy of it is used" 1 0 yes
    expect "and its advisories fail" 1 2 "an earlier copy of it is used" 1 1 yes
    rm -rf "$work"
    return $failed
}

case ${1:-} in
    '') advisories ;;
    --test) tests ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
