#!/usr/bin/env bash
# Checks that the kubectl plugin compiles for macOS and Windows: clippy of the plugin, its tests and its dependencies for each
# target, and all C and assembler files of its TLS library. `make cli-portable` calls it.
#
#   tests/portable/run.sh              all targets
#   tests/portable/run.sh TARGET...    these targets
#
# Nothing is linked here; `make release` links the plugin. Needs rustup (it adds the targets), and Python 3 with venv (a C compiler
# for both, from PyPI, pinned by digest).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
targets=("$@")
[ $# -gt 0 ] || targets=(aarch64-apple-darwin x86_64-apple-darwin x86_64-pc-windows-gnu)

# shellcheck source=tests/portable/compilers.sh
source "$here/compilers.sh"
compilers_for "${targets[@]}"

failed=0
for target in "${targets[@]}"; do
    if cargo clippy --package kubectl-spillway --all-targets --target "$target" --locked -- -D warnings; then echo "ok   $target"; else echo "FAIL $target"; failed=1; fi
done
exit "$failed"
