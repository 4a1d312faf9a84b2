#!/usr/bin/env bash
# Checks that the kubectl plugin compiles for macOS and Windows: clippy of the plugin, its tests and its dependencies for each
# target, and all C and assembler files of its TLS library. `make cli-portable` calls it.
#
#   tests/portable/run.sh              all targets
#   tests/portable/run.sh TARGET...    these targets
#
# For Windows it is linked, too: target/x86_64-pc-windows-gnu/debug/kubectl-spillway.exe. For macOS it is not: that needs
# libraries that only Apple has. Needs rustup (it adds the targets), and Python 3 with venv (a C compiler for both, from PyPI,
# pinned by digest).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
targets=("$@")
[ $# -gt 0 ] || targets=(aarch64-apple-darwin x86_64-apple-darwin x86_64-pc-windows-gnu)

# Adds the standard library of each target to the toolchain that cargo uses here.
missing=()
for target in "${targets[@]}"; do
    [ -e "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || missing+=("$target")
done
[ ${#missing[@]} = 0 ] || rustup target add "${missing[@]}"

venv=$(tests/venv.sh zig "$here/requirements.txt")
tools=$venv/compilers
mkdir -p "$tools"
export ZIG_GLOBAL_CACHE_DIR="$tools/zig-cache" ZIG_LOCAL_CACHE_DIR="$tools/zig-cache"

# wrapper NAME WORD... : makes a program of this name that calls zig with these words. Build scripts pass target options that
# zig does not know. The wrapper removes them and passes zig's own.
wrapper() {
    local file="$tools/$1"; shift
    cat > "$file" <<W
#!/usr/bin/env bash
words=()
for word; do case \$word in --target=* | -mmacosx-version-min=*) ;; *) words+=("\$word") ;; esac; done
exec $(printf '%q ' "$venv/bin/python" -m ziglang "$@") "\${words[@]}"
W
    chmod +x "$file"
}
wrapper ar ar
wrapper cc-aarch64-apple-darwin cc -target aarch64-macos
wrapper cc-x86_64-apple-darwin cc -target x86_64-macos
wrapper cc-x86_64-pc-windows-gnu cc -target x86_64-windows-gnu

failed=0
for target in "${targets[@]}"; do
    compiler=$tools/cc-$target
    [ -e "$compiler" ] || { echo "there is no C compiler for the target $target" >&2; exit 2; }
    name=${target//-/_}
    export "CC_$name=$compiler" "AR_$name=$tools/ar"
    if cargo clippy --package kubectl-spillway --all-targets --target "$target" --locked -- -D warnings; then echo "ok   $target"; else echo "FAIL $target"; failed=1; fi
done
exit "$failed"
