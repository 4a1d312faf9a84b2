#!/usr/bin/env bash
# Runs a registry on this machine for dry runs and tests, in the foreground, with its content in a folder.
#
#   release/registry.sh ADDRESS FOLDER      ADDRESS: IP:PORT or localhost:PORT
set -euo pipefail
address=${1:?an address} folder=${2:?a folder}
tools=$(realpath -ms "${SPILLWAY_CACHE:-$HOME/.cache/spillway}/tools/bin")
mkdir -p "$folder"
cat > "$folder/registry.yaml" <<Y
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $folder/content}, delete: {enabled: true}}
http: {addr: "$address"}
Y
OTEL_TRACES_EXPORTER=none exec "$tools/registry" serve "$folder/registry.yaml"
