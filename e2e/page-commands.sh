#!/usr/bin/env bash
# Prints the commands of a page of the documentation, which are its fenced blocks of `sh`, in their order.
#
#   e2e/page-commands.sh PAGE [HEADING]     HEADING: only those between this heading and the next one
set -euo pipefail
page=${1:?a page} heading=${2:-}
printed=$(awk -v heading="$heading" '
    /^##+ / && !inside { here = $0; sub(/^#+ /, "", here) }
    /^ *```/ { if (!inside) wanted = /^ *```sh$/ && (heading == "" || here == heading); else wanted = 0; inside = !inside; next }
    wanted' "$page")
[ -n "$printed" ] || { echo "$page has no commands${heading:+ below \"$heading\"}" >&2; exit 1; }
printf '%s\n' "$printed"
