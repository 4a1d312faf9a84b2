# shellcheck shell=bash
# Read by scripts that compile for macOS and Windows: a C compiler for both, and the targets of Rust. The script must be at the root of
# the repository. It needs rustup, and Python 3 with venv (the compiler is zig, from PyPI, pinned by digest).

# compilers_for TARGET... : adds the standard library of each target to the toolchain that cargo uses here, and tells build scripts
# which C compiler to call. $tools is the folder of the compilers.
compilers_for() {
    local target name missing=() venv
    for target in "$@"; do
        [ -e "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || missing+=("$target")
    done
    [ ${#missing[@]} = 0 ] || rustup target add "${missing[@]}"

    venv=$(tests/venv.sh zig tests/portable/requirements.txt)
    tools=$venv/compilers
    mkdir -p "$tools"
    export ZIG_GLOBAL_CACHE_DIR="$tools/zig-cache" ZIG_LOCAL_CACHE_DIR="$tools/zig-cache"
    zig_wrapper ar ar
    zig_wrapper cc-aarch64-apple-darwin cc -target aarch64-macos
    zig_wrapper cc-x86_64-apple-darwin cc -target x86_64-macos
    zig_wrapper cc-x86_64-pc-windows-gnu cc -target x86_64-windows-gnu
    for target in "$@"; do
        [ -e "$tools/cc-$target" ] || { echo "there is no C compiler for the target $target" >&2; return 2; }
        name=${target//-/_}
        export "CC_$name=$tools/cc-$target" "AR_$name=$tools/ar"
    done
}

# zig_wrapper NAME WORD... : makes a program of this name that calls zig with these words. Build scripts pass target options that
# zig does not know. The wrapper removes them and passes zig's own.
zig_wrapper() {
    local file="$tools/$1"; shift
    # Written under another name and then moved: another script may run the program now.
    cat > "$file.$$" <<W
#!/usr/bin/env bash
words=()
for word; do case \$word in --target=* | -mmacosx-version-min=*) ;; *) words+=("\$word") ;; esac; done
exec $(printf '%q ' "$venv/bin/python" -m ziglang "$@") "\${words[@]}"
W
    chmod +x "$file.$$"
    mv "$file.$$" "$file"
}
