#!/usr/bin/env bash
# Runs the test of a way to install Spillway. With WRITE=1 it writes the result into the table of ways in docs/reference/kubernetes.md, in
# the column of the Kubernetes version that the test ran on. The targets of the Makefile call it.
#
#   e2e/way-in.sh WAY COMMAND...     WAY: the name of the row; a new name makes a new row
#
# KUBERNETES: the version of the local cluster (default: the cluster's own).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
way=$1 page=docs/reference/kubernetes.md status=0
"${@:2}" || status=$?
[ -n "${WRITE:-}" ] || exit $status
# The first version is the default.
version=${KUBERNETES:-$(e2e/cluster/cluster versions | sed -n '1s/ .*//p')}
version=$(cut -d . -f 1-2 <<< "$version")
if [ $status = 0 ]; then result=passed; else result='**failed**'; fi
# A cell is the result and the day. A version without a column is an error.
awk -v way="$way" -v version="$version" -v result="$result, $(date -u +%F)" '
    function line(cells, count,   i, text) { text = "|"; for (i = 1; i <= count; i++) text = text " " cells[i] " |"; return text }
    function set(   i, cells, count) {
        count = split(names, heads, "|") - 2
        for (i = 1; i <= count; i++) { gsub(/^ +| +$/, "", heads[i + 1]); cells[i] = i == 1 ? way : "not run"; if (heads[i + 1] == version) column = i }
        if (!column) { print "no column for Kubernetes " version > "/dev/stderr"; wrong = 1; exit 1 }
        for (i = 2; i <= count && known; i++) cells[i] = row[i + 1]
        cells[column] = result
        print line(cells, count); done = 1
    }
    /^<!-- begin of ways/ { inside = 1 }
    inside && /^\| way/ { names = $0 }
    inside && index($0, "| " way " |") == 1 {
        known = split($0, row, "|"); for (i in row) gsub(/^ +| +$/, "", row[i]); set(); next
    }
    /^<!-- end of ways/ { if (!done) set(); inside = 0 }
    { print }
    END { if (!wrong && !done) { print "the page lacks the marks of the ways" > "/dev/stderr"; exit 1 } }
' "$page" > "$page.new" || { rm "$page.new"; exit 1; }
mv "$page.new" "$page"
echo "wrote the result of \"$way\" on Kubernetes $version into $page"
exit $status
