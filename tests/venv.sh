#!/usr/bin/env bash
# Makes a Python environment with the packages of a file, pinned by digest, once, in the cache. It prints the folder. It needs
# Python 3 with venv.
#
#   tests/venv.sh NAME REQUIREMENTS
set -euo pipefail
venv=${SPILLWAY_CACHE:-$HOME/.cache/spillway}/$1-$(cat "$2" <(python3 --version) | sha256sum | cut -c1-12)
if [ ! -e "$venv/done" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$2" >&2
    touch "$venv/done"
fi
echo "$venv"
