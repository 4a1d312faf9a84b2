#!/usr/bin/env bash
# The checks of a change that take less than a minute on a built checkout: formatting, clippy of the packages with changes since
# the last commit (their libraries and programs; `make lint` includes the tests), the syntax of scripts, the list of
# dependencies, the documentation. `make pre-commit` calls it. All checks run, also after a failure.
#
# `make generated` (needed after a change of crates/api) and the tests are not included, because they build the operator.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
failed=()
check() { # WHAT COMMAND...
    local what=$1 said started=$SECONDS; shift
    if said=$("$@" 2>&1); then echo "ok   $what ($((SECONDS - started)) s)"; else echo "FAIL $what"; failed+=("$what"); sed 's/^/     /' <<<"$said"; fi
}

# The packages of the workspace whose sources differ from the last commit, tracked or not.
changed_packages() {
    local file folder
    { git diff --name-only HEAD; git ls-files --others --exclude-standard; } | grep -E '(\.rs|(^|/)Cargo\.toml)$' | while read -r file; do
        case $file in fuzz/* | e2e/tests/*) continue ;; esac
        folder=$(dirname "$file")
        until [ -f "$folder/Cargo.toml" ]; do folder=$(dirname "$folder"); done
        sed -nE '/^\[package\]/,/^\[/s/^name = "(.*)"/\1/p' "$folder/Cargo.toml"
    done | sort -u
}

syntax() {
    local file wrong=0
    while IFS= read -r file; do
        case $(head -n 1 "$file") in '#!/bin/sh') sh -n "$file" ;; *) bash -n "$file" ;; esac || wrong=1
    done < <({ git ls-files '*.sh'; git grep -lIE '^#!.*[/ ](bash|sh)$' -- ':!fuzz/corpus' ':!*.md' ':!*.rs'; } | sort -u)
    while IFS= read -r file; do
        python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$file" || wrong=1
    done < <(git ls-files '*.py')
    return $wrong
}

documentation() { local said; said=$(tests/docs.sh) || { grep -v '^ok ' <<<"$said"; return 1; }; }

check "formatting" cargo fmt --all --check
check "syntax of scripts" syntax
check "dependencies" tests/supply-chain.sh
check "lock files" tests/locks.sh
check "documentation" documentation
mapfile -t packages < <(changed_packages)
if [ ${#packages[@]} = 0 ]; then
    echo "skip clippy: no package has changes"
else
    check "clippy of ${packages[*]}" cargo clippy --quiet --locked "${packages[@]/#/--package=}" -- -D warnings
fi
[ ${#failed[@]} = 0 ] || { echo "failed: $(printf '%s; ' "${failed[@]}" | sed 's/; $//')"; exit 1; }
