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

# postgres_folder : the folder with PostgreSQL's programs, from this machine or from Debian's packages
postgres_folder() {
    local found packages file
    found=$(find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null | sort -V | tail -n 1)
    if [ -z "$found" ] || [ -n "${SAMPLES_UNPACK:-}" ]; then
        if [ ! -e "$unpacked/done" ]; then
            rm -rf "$unpacked"; mkdir -p "$unpacked/packages"
            apt-get update -qq >&2
            # The newest version of Debian, and each library that this machine lacks.
            packages=$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p')
            packages="$packages ${packages/postgresql-/postgresql-client-} libpq5 $(apt-get install --simulate --no-install-recommends "$packages" 2>/dev/null |
                sed -n 's/^Inst \(lib[^ ]*\).*/\1/p' | tr '\n' ' ')"
            # shellcheck disable=SC2086  # words
            (cd "$unpacked/packages" && apt-get download -qq $packages) >&2
            for file in "$unpacked"/packages/*.deb; do dpkg-deb --extract "$file" "$unpacked"; done
            postgres_wrappers "$(dirname "$(find "$unpacked/usr/lib/postgresql" -path '*/bin/initdb')")"
            touch "$unpacked/done"
        fi
        found=$unpacked/bin/initdb
    fi
    dirname "$found"
}

# postgres_wrappers FOLDER : scripts that start the unpacked programs with their libraries. A bridge passes no LD_LIBRARY_PATH on.
postgres_wrappers() {
    local name libraries
    libraries=$(find "$unpacked/usr/lib" -name '*.so.*' -printf '%h\n' | sort -u | paste -sd :)
    mkdir -p "$unpacked/bin"
    for name in initdb postgres psql; do
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s/%s "$@"\n' "$libraries" "$1" "$name" > "$unpacked/bin/$name"
        chmod 755 "$unpacked/bin/$name"
    done
}

postgres=$(postgres_folder)
[ -n "${KUBECTL:-}" ] || KUBECTL=$(find "${SPILLWAY_CACHE:-$HOME/.cache/spillway}"/build/kubernetes-*/ -name kubectl -type f -perm -u+x 2>/dev/null | head -n 1)
export KUBECTL
# Not in /tmp, which programs of a bridge cannot read.
work=$(mktemp -d -p target samples.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
python3 "$here/samples.py" "$binary" "$work" "$postgres"
