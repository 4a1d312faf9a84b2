#!/usr/bin/env bash
# The rules for sentences (tests/prose/styles/Spillway) over every Markdown page. Fenced blocks, inline code and generated
# pages are left out, because their sentences are in the code.
#
#   tests/prose.sh [PAGE...]           checks these pages, or all
#   tests/prose.sh --test              tests the rules: each refuses a planted sentence, and a plain page passes
#
# Needs vale, on PATH or in $VALE; `make prose` builds it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VALE=${VALE:-vale}
command -v "$VALE" >/dev/null || { echo "prose: $VALE is missing; make prose builds it" >&2; exit 2; }
check() { "$VALE" --no-global --config tests/prose/.vale.ini --output line "$@"; }

tests() {
    local work said failed=0 rule rules=' '
    work=$(mktemp -d)
    # refused RULE SENTENCE : only this rule refuses the sentence
    refused() {
        rules+="$1 "
        printf '# A page\n\nThe gateway runs.\n\n- %s\n' "$2" >"$work/page.md"
        if said=$(check "$work/page.md"); then echo "FAIL $1 accepts: $2"; failed=1
        elif [ "$(cut -d: -f4 <<<"$said" | sort -u)" != "Spillway.$1" ]; then echo "FAIL $1: $said"; failed=1
        else echo "ok   $1 refuses: ${2:0:70}"; fi
    }
    # taken SENTENCE
    taken() {
        printf '# A page\n\n%s\n' "$1" >"$work/page.md"
        if said=$(check "$work/page.md"); then echo "ok   accepted: ${1//$'\n'/ }"; else echo "FAIL $1: $said"; failed=1; fi
    }
    refused SentenceLength "The gateway$(printf ' counts each token and%.0s' {1..9}) then stops."
    refused Chain "The pod ends; the item waits; another agent claims it."
    refused Subjects "Who asks for work waits in the queue."
    refused Subjects "What a tenant writes is bounded."
    refused DroppedSubject "Needs a cluster and root."
    refused Riddle "The item goes to whoever asks."
    refused HouseWords "The gateway is the only way out of the pod."
    refused HouseWords "The walls around the pod hold."
    refused Filler "You can simply run the command."
    refused Latin "Use a label, e.g. the name of the team."
    refused Future "The item will go to one agent."
    taken "The governor gives each item to one agent. What does an agent without an item do? It waits."
    taken "$(printf 'Run it:\n\n```\nwhoever will; simply; e.g. obviously\n```\n\nThe field `will` is one of `nobody; whoever; walls`.')"
    taken "The gateway$(printf ' counts each token and%.0s' {1..4}) stops. The gateway$(printf ' counts each token and%.0s' {1..4}) stops."
    for rule in tests/prose/styles/Spillway/*.yml; do
        rule=$(basename "$rule" .yml)
        [[ $rules == *" $rule "* ]] || { echo "FAIL $rule: no test has a sentence that it refuses"; failed=1; }
    done
    rm -rf "$work"
    return $failed
}

case ${1:-} in
    --test) tests ;;
    -*) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    *)
        pages=("$@")
        if [ $# = 0 ]; then
            mapfile -t all < <(find ./*.md .github docs e2e fuzz -name '*.md' -not -path '*/target/*' | sort)
            # A page that the program writes says so in its first line.
            for page in "${all[@]}"; do head -n 1 "$page" | grep -q '^<!-- Generated' || pages+=("$page"); done
        fi
        [ ${#pages[@]} -gt 0 ] || { echo "prose: no pages found" >&2; exit 2; }
        check "${pages[@]}" || { echo "prose: change these sentences. The rules and their reasons are in tests/prose/styles/Spillway" >&2; exit 1; }
        echo "the sentences of ${#pages[@]} pages are plain"
        ;;
esac
