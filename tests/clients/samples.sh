#!/usr/bin/env bash
# Tries the samples of config/samples/toolsets with the real bridge, git, kubectl, PostgreSQL and curl (samples.py). Nothing is installed:
# where PostgreSQL is missing, its Debian packages are unpacked into target (SAMPLES_UNPACK=1: in any case).
#
#   tests/clients/samples.sh BINARY     BINARY is a built spillway
#
# This needs git with HTTP, curl, openssl, Python 3.10 or newer, and kubectl (KUBECTL, PATH or the cache of e2e/cluster).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
binary=$(realpath "$1")
cd "$here/../.."
# Not in the cache, which may be in a folder of root: the server runs as another user.
unpacked=$PWD/target/postgresql
# Not in /tmp, which programs of a bridge cannot read, nor in the checkout, which others may change.
work=$(mktemp -d -p /var/tmp samples.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# unpack : the Debian packages of PostgreSQL, with each library that this machine lacks
unpack() {
    local packages file
    [ ! -e "$unpacked/done" ] || return 0
    rm -rf "$unpacked"; mkdir -p "$unpacked/packages"
    apt-get update -qq
    # The newest version of Debian.
    packages=$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p')
    packages="$packages ${packages/postgresql-/postgresql-client-} libpq5 $(apt-get install --simulate --no-install-recommends "$packages" 2>/dev/null |
        sed -n 's/^Inst \(lib[^ ]*\).*/\1/p' | tr '\n' ' ')"
    # shellcheck disable=SC2086  # words
    (cd "$unpacked/packages" && apt-get download -qq $packages)
    for file in "$unpacked"/packages/*.deb; do dpkg-deb --extract "$file" "$unpacked"; done
    touch "$unpacked/done"
}

# wrappers : scripts in $work/bin that start the unpacked programs with their libraries. A bridge passes no LD_LIBRARY_PATH on.
wrappers() {
    local name folder libraries
    folder=$(dirname "$(find "$unpacked/usr/lib/postgresql" -path '*/bin/initdb')")
    libraries=$(find "$unpacked/usr/lib" -name '*.so.*' -printf '%h\n' | sort -u | paste -sd :)
    mkdir "$work/bin"
    for name in initdb postgres psql; do
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s/%s "$@"\n' "$libraries" "$folder" "$name" > "$work/bin/$name"
        chmod 755 "$work/bin/$name"
    done
}

postgres=$({ find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null || true; } | sort -V | tail -n 1)
if [ -z "$postgres" ] || [ -n "${SAMPLES_UNPACK:-}" ]; then
    unpack >&2
    wrappers
    postgres=$work/bin/initdb
fi
# That of the local cluster, if it was built. Otherwise samples.py takes the one on PATH.
[ -n "${KUBECTL:-}" ] || for KUBECTL in "${SPILLWAY_CACHE:-$HOME/.cache/spillway}"/build/kubernetes-*/kubectl; do [ -x "$KUBECTL" ] || KUBECTL=''; done
export KUBECTL
python3 "$here/samples.py" "$binary" "$work" "$(dirname "$postgres")"
