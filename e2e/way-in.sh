#!/usr/bin/env bash
# Runs the test of a way to install Spillway. With WRITE=1 it writes the result into the table of ways in docs/reference/kubernetes.md, in
# the column of the Kubernetes version that the test ran on. The targets of the Makefile call it.
#
#   e2e/way-in.sh WAY COMMAND...     WAY: the name of the row; a new name makes a new row
#
# KUBERNETES: the version of the local cluster (default: the cluster's own).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -ge 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
[ -n "${WRITE:-}" ] || exec "${@:2}"

way=$1 page=docs/reference/kubernetes.md status=0
[ "${SPILLWAY_BACKEND:-local}" = local ] || way+=" ($SPILLWAY_BACKEND)"
# The version of another cluster is not known here.
[ -z "${SPILLWAY_KUBECONFIG:-}${KIND_NODE_IMAGE:-}" ] || { echo "way-in: with WRITE=1, unset SPILLWAY_KUBECONFIG and KIND_NODE_IMAGE" >&2; exit 2; }
# The first version is the default.
version=$(cut -d . -f 1-2 <<< "${KUBERNETES:-$(e2e/cluster/cluster versions | sed -n '1s/ .*//p')}")
grep -q "^| way in |.* $version |" "$page" || { echo "way-in: $page has no column for Kubernetes $version" >&2; exit 2; }

"${@:2}" || status=$?
if [ $status = 0 ]; then result=passed; else result='**failed**'; fi
# A cell has the result and the day. Another run may write too.
mkdir -p target
exec 9> target/way-in.lock
flock 9
awk -F ' *[|] *' -v OFS=' | ' -v way="$way" -v version="$version" -v cell="$result, $(date -u +%F)" '
    function print_row() { $column = cell; gsub(/^ | $/, ""); print; written = 1 }
    $2 == "way in" { width = NF - 1; for (i = 3; i <= width; i++) if ($i == version) column = i }
    column && !written && $2 == way { print_row(); next }
    /^<!-- end of ways/ && !written { end = $0; $0 = ""; $2 = way; for (i = 3; i <= width; i++) $i = "not run"; $(width + 1) = ""; print_row(); $0 = end }
    { print }
' "$page" > "$page.new"
mv "$page.new" "$page"
echo "wrote the result of \"$way\" on Kubernetes $version into $page"
exit $status
