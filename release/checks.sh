# shellcheck shell=bash
# Read by the scripts that check a release: one line a check, as in tests/chart.sh, and the sum at the end.
passed=0 failed=0
ok() { passed=$((passed + 1)); echo "ok   $*"; }
bad() { failed=$((failed + 1)); echo "FAIL $1"; [ $# -lt 2 ] || echo "     ${2//$'\n'/$'\n'     }"; }
# check NAME CMD... : passes when CMD succeeds. Its errors end it at once.
check() {
    local name=$1 output status; shift
    # Bash ignores `set -e` in the condition of an `if`.
    output=$(set -e; "$@" 2>&1)
    status=$?
    if [ "$status" = 0 ]; then ok "$name"; else bad "$name" "$(tail -n 15 <<<"$output")"; fi
}
# refused NAME TEXT CMD... : passes when CMD fails and its message holds TEXT
refused() {
    local name=$1 text=$2 output; shift 2
    if output=$("$@" 2>&1); then bad "$name" "was not refused: $(tail -n 3 <<<"$output")"
    elif grep -qF -- "$text" <<<"$output"; then ok "$name"
    else bad "$name" "$(tail -n 15 <<<"$output")"; fi
}
equal() { [ "$1" = "$2" ] || { diff <(echo "$1") <(echo "$2") | head -n 20; return 1; }; }
sum_up() { echo "$passed passed, $failed failed"; [ "$failed" = 0 ]; }
