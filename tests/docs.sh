#!/usr/bin/env bash
# Tests of the documentation: that targets of relative links exist, that the book lists every page, that every `make X` exists,
# that every test and constant that a page names exists, and that the API server accepts every example (in a dry run, which
# stores nothing). The last test needs a cluster with our CRDs:
#
#   tests/docs.sh                              without one: examples are skipped
#   e2e/cluster/cluster run tests/docs.sh      with the local one
# shellcheck disable=SC2016  # the backticks are Markdown's
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

passed=0 failed=0
ok() { passed=$((passed + 1)); echo "ok   $*"; }
bad() { failed=$((failed + 1)); echo "FAIL $1"; [ $# -lt 2 ] || echo "     ${2//$'\n'/$'\n'     }"; }

mapfile -t pages < <(find . -name '*.md' -not -path './target/*' -not -path './.git/*' | sort)
[ ${#pages[@]} -gt 0 ] || { echo "docs: no pages found" >&2; exit 2; }

# The text without fenced blocks, because links in those do not count.
prose() { awk '/^ *```/ { fenced = !fenced; next } !fenced' "$1"; }
# The anchors of a page's headings, as repository hosts make them.
anchors() {
    prose "$1" | sed -nE 's/^#{1,6} +//p' | sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g' |
        tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# --- links ------------------------------------------------------------------------------------------------------------
for page in "${pages[@]}"; do
    broken=''
    while read -r link; do
        case $link in http://* | https://* | mailto:*) continue ;; esac
        file=${link%%#*} anchor=''
        [[ $link != *'#'* ]] || anchor=${link#*#}
        target=$page
        [ -z "$file" ] || target=$(dirname "$page")/$file
        if [ ! -e "$target" ]; then
            broken+="$link: there is no $target"$'\n'
        elif [ -n "$anchor" ] && ! anchors "$target" | grep -qxF -- "$anchor"; then
            broken+="$link: no heading of $target makes this anchor"$'\n'
        fi
    done < <(prose "$page" | sed -E 's/`[^`]*`//g' | grep -oE '\]\([^) ]+\)' | sed -E 's/^\]\(//; s/\)$//')
    if [ -z "$broken" ]; then ok "links of $page"; else bad "links of $page" "${broken%$'\n'}"; fi
done

# --- the book ---------------------------------------------------------------------------------------------------------
unlisted=''
while read -r page; do
    grep -qF "(${page#docs/})" docs/SUMMARY.md || unlisted+="$page"$'\n'
done < <(find docs -name '*.md' -not -name SUMMARY.md | sort)
if [ -z "$unlisted" ]; then ok "docs/SUMMARY.md lists every page"; else bad "docs/SUMMARY.md lists every page" "${unlisted%$'\n'}"; fi

# --- make -------------------------------------------------------------------------------------------------------------
# Only in code: `make sure` in a sentence is no command.
in_code() { awk '/^ *```/ { fenced = !fenced; next } fenced' "$1"; prose "$1" | grep -oE '`[^`]*`' | tr -d '`'; }
targets=$(sed -nE 's/^([a-z0-9-]+):.*/\1/p' Makefile e2e/cluster/make.mk)
unknown=''
for page in "${pages[@]}"; do
    while read -r name; do
        grep -qxF -- "$name" <<<"$targets" || unknown+="$page: make $name"$'\n'
    done < <(in_code "$page" | grep -oE '(^|[ (])make( -[a-z]+)* [a-z][a-z0-9-]*' | sed -E 's/.* //' | sort -u)
done
if [ -z "$unknown" ]; then ok "every make command exists"; else bad "every make command exists" "${unknown%$'\n'}"; fi

# --- the plugin's commands --------------------------------------------------------------------------------------------
unknown=''
commands=$(sed -nE '/^pub enum Command/,/^}/s/^    ([A-Z][a-z]+)[({,].*|^    ([A-Z][a-z]+) \{.*/\1\2/p' crates/kubectl-plugin/src/lib.rs | tr '[:upper:]' '[:lower:]')
[ -n "$commands" ] || bad "the plugin's commands" "none found in crates/kubectl-plugin/src/lib.rs"
for page in "${pages[@]}"; do
    while read -r name; do
        grep -qxF -- "$name" <<<"$commands" || unknown+="$page: kubectl spillway $name"$'\n'
    done < <(in_code "$page" | grep -oE 'kubectl[ -]spillway [a-z]+' | sed -E 's/.* //' | sort -u)
done
if [ -z "$unknown" ]; then ok "every command of the plugin exists"; else bad "every command of the plugin exists" "${unknown%$'\n'}"; fi

# --- tests and constants that pages name ------------------------------------------------------------------------------
# `path::name` names a test: a function of that name with a test attribute, or, in a shell script, a check of that name.
is_test() {
    [ -f "$1" ] || return 1
    case $1 in
    *.sh) grep -qF -- "\"$2\"" "$1" ;;
    *) grep -E -B4 "^ *(async )?fn $2\(" "$1" | grep -qE '#\[(tokio::)?test\b|#\[(tokio::)?test\(' ;;
    esac
}
unknown='' named=0
while IFS= read -r line; do
    page=${line%%:\`*} reference=${line#*:\`} reference=${reference%\`}
    named=$((named + 1))
    is_test "${reference%%::*}" "${reference#*::}" || unknown+="$page: $reference"$'\n'
done < <(grep -oE '`(crates|e2e|src|tests)/[A-Za-z0-9_./-]+::[^`]+`' "${pages[@]}")
[ "$named" -gt 0 ] || unknown="no page names a test"$'\n'
if [ -z "$unknown" ]; then ok "every test that a page names exists"; else bad "every test that a page names exists" "${unknown%$'\n'}"; fi

# Paths in our repository that a page names, except build results and paths with a placeholder in capitals.
unknown='' named=0
while IFS= read -r line; do
    page=${line%%:\`*} path=${line#*:\`} path=${path%\`}
    [[ $path =~ (^|/)target/|[A-Z]{4} && ! -e $path ]] && continue
    named=$((named + 1))
    [ -e "$path" ] || unknown+="$page: $path"$'\n'
done < <(grep -oE '`(src|crates|e2e|tests|charts|config|crds|fuzz|site|supply-chain)/[A-Za-z0-9_./-]+`' "${pages[@]}")
[ "$named" -gt 0 ] || unknown="no page names a file"$'\n'
if [ -z "$unknown" ]; then ok "every file that a page names exists"; else bad "every file that a page names exists" "${unknown%$'\n'}"; fi

# Each row of the page of bounds names a test, except the rows of bounds by other programs. Words in capitals are constants.
bounds=docs/reference/bounds.md
without=$(awk '/^## What is bounded by others/ { exit } /^\|/' "$bounds" | grep -vE '^[-|]+$|^\| what \|' | grep -vE '`[^`]+::[^`]+` \|$')
if [ -z "$without" ]; then ok "every bound has a test"; else bad "every bound has a test" "$without"; fi
unknown=''
while IFS= read -r name; do
    grep -rqE --include='*.rs' "\b(const|static) $name\b" src crates || unknown+="$name"$'\n'
done < <(grep -oE '`[A-Z][A-Z_]+`' "$bounds" | tr -d '`' | sort -u)
if [ -z "$unknown" ]; then ok "every constant of a bound exists"; else bad "every constant of a bound exists" "${unknown%$'\n'}"; fi
# The table of ordinary changes also names constants and environment variables.
unknown=''
while IFS= read -r name; do
    grep -rqE --include='*.rs' "\b(const|static) $name\b|\"$name\"" src crates e2e || unknown+="$name"$'\n'
done < <(sed -n '/^## Ordinary changes/,$p' CONTRIBUTING.md | grep -oE '`[A-Z][A-Z_]+`' | tr -d '`' | sort -u)
if [ -z "$unknown" ]; then ok "every constant of an ordinary change exists"; else bad "every constant of an ordinary change exists" "${unknown%$'\n'}"; fi

# --- examples ---------------------------------------------------------------------------------------------------------
# Blocks marked yaml, and the input of commands without a prompt, if they have an object of ours. (After a command with a prompt
# comes its output, which may be a refusal.)
examples=0
for page in "${pages[@]}"; do
    awk -v out="$work/example-$(tr '/' '_' <<<"${page#./}")" '
        /^ *```yaml$/ { match($0, /^ */); indent = RLENGTH; inside = 1; file = out "-" NR; next }
        /^kubectl .*<<.POOL.$/ { indent = 0; inside = 1; file = out "-" NR; next }
        /^ *```/ || /^POOL$/ { inside = 0 }
        inside { print substr($0, indent + 1) > file }' "$page"
done
for example in "$work"/example-*; do
    [ -e "$example" ] || continue
    if grep -q '^apiVersion: spillway\.dev/' "$example"; then examples=$((examples + 1)); else rm "$example"; fi
done
if [ "$examples" = 0 ]; then
    bad "examples" "no yaml block with apiVersion: spillway.dev was found"
elif ! command -v kubectl >/dev/null || ! kubectl get --raw /readyz --request-timeout=5s >/dev/null 2>&1; then
    echo "skip $examples examples: no cluster is reachable (e2e/cluster/cluster run tests/docs.sh)"
elif ! kubectl get --raw /apis/spillway.dev/v1alpha1 --request-timeout=5s >/dev/null 2>&1; then
    echo "skip $examples examples: this cluster does not serve our kinds (kubectl apply --server-side -k crds)"
else
    for example in "$work"/example-*; do
        # The namespace of an example may be missing in this cluster.
        sed -i '/^  namespace: /d' "$example"
        name=$(basename "$example"); name=${name#example-}
        if output=$(kubectl apply --dry-run=server --namespace default -f "$example" 2>&1); then ok "example $name"; else bad "example $name" "$output"; fi
    done
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
