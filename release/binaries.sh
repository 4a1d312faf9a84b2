#!/usr/bin/env bash
# Builds the programs of a release: all of them for Linux (static), and the kubectl plugin for macOS and Windows. It checks that each is
# a program of its platform, and starts those that can be started here.
#
#   release/binaries.sh VERSION [PLATFORM...]     PLATFORM: linux-amd64, linux-arm64, darwin-amd64, darwin-arm64, windows-amd64
#
# It runs on Linux on x86_64. Needs rustup. For arm64: gcc-aarch64-linux-gnu and, to start it, qemu-user-static; for Windows:
# gcc-mingw-w64-x86-64; for macOS: Python 3 with venv, and zig from PyPI as the C compiler. The linker gets the names of Apple's libraries
# from release/macos and from zig: no file of Apple is needed, and the result was not run on macOS.
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/portable/compilers.sh
source tests/portable/compilers.sh
shift
platforms=("$@")
[ $# -gt 0 ] || platforms=("${PLUGIN_PLATFORMS[@]}")
[ "$(uname -sm)" = "Linux x86_64" ] || die "programs for all platforms are built on Linux on x86_64 only"

# Messages of programs do not contain the folders of this machine, so that another machine builds the same bytes: those of Rust, and those
# of the C code of dependencies.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
remap() { printf -- '--remap-path-prefix=%s=%s\x1f' "$PWD" /spillway "$cargo_home" /cargo; printf -- '--remap-path-prefix=%s=/rust' "$(rustc --print sysroot)"; }

# build PLATFORM FLAGS PACKAGE...
build() {
    local target flags
    target=$(rust_target "$1"); flags=$2; shift 2
    export "CFLAGS_${target//-/_}=-ffile-prefix-map=$PWD=/spillway -ffile-prefix-map=$cargo_home=/cargo"
    CARGO_ENCODED_RUSTFLAGS="$(remap)$flags" CARGO_INCREMENTAL=0 cargo build --locked --release --target "$target" \
        --target-dir target/release-build "${@/#/--package=}" --bins
}
# Parts of the encoded flags begin with their separator.
static=$'\x1f-C\x1ftarget-feature=+crt-static'

# macos_flags : the flags for macOS: the linker of Rust itself, and the folders of the lists of symbols. The one of the C library is zig's.
macos_flags() {
    local stubs=$PWD/release/macos list name
    list=$(find "$(dirname "$tools")/lib" -name libSystem.tbd -print -quit)
    [ -n "$list" ] || die "zig has no list of the symbols of macOS"
    mkdir -p "$tools/macos"
    for name in System c m; do ln -sf "$list" "$tools/macos/lib$name.tbd"; done
    printf '\x1f%s' -Clinker=rust-lld -Clinker-flavor=ld64.lld "-Clink-arg=-L$tools/macos" "-Clink-arg=-L$stubs" "-Clink-arg=-F$stubs"
}

for platform in "${platforms[@]}"; do
    target=$(rust_target "$platform")
    say "building for $platform"
    case $platform in
        linux-amd64) ;;
        linux-arm64)
            need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
            export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
            ;;
        windows-amd64)
            # Debian's compiler, not zig, because the C code and the standard library must use the same C library of Windows.
            need x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64
            export CC_x86_64_pc_windows_gnu=x86_64-w64-mingw32-gcc AR_x86_64_pc_windows_gnu=x86_64-w64-mingw32-ar
            export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc
            ;;
        darwin-*)
            compilers_for "$target"
            export MACOSX_DEPLOYMENT_TARGET=13.0
            ;;
    esac
    [ -e "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || rustup target add "$target"
    case $platform in
        linux-*) build "$platform" "$static" spillway spillway-pod kubectl-spillway ;;
        windows-*) build "$platform" "$static" kubectl-spillway ;;
        darwin-*)
            flags=$(macos_flags) # an assignment, so that its error ends the script
            build "$platform" "$flags" kubectl-spillway
            ;;
    esac
    release/programs.py "$version" "$platform" "$(dirname "$(built "$platform" kubectl-spillway)")"
done
