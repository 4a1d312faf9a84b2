# shellcheck shell=bash
# Package managers and their languages, as this machine has them, in an image. build.sh reads this file; it has
# `with_libraries` and `die`.

# with_node ROOT : Node.js and npm
with_node() {
    local npm
    command -v npm > /dev/null || die "npm is missing (Debian: apt-get install npm)"
    npm=$(realpath "$(command -v npm)")   # .../npm/bin/npm-cli.js
    npm=${npm%/bin/*}
    with_libraries "$1" "$(realpath "$(command -v node)")"
    mkdir -p "$1${npm%/*}" "$1/usr/bin"
    cp -r "$npm" "$1$npm"
    [ -e "$1/usr/bin/node" ] || ln -s "$(realpath "$(command -v node)")" "$1/usr/bin/node"
    ln -sf "$npm/bin/npm-cli.js" "$1/usr/bin/npm"
}

# with_python ROOT : Python 3 and pip, without the tests of its library and without other packages
with_python() {
    local program library pip file
    { read -r program; read -r library; read -r pip; } < <(python3 - <<'P'
import os, sys, sysconfig
import pip
print(os.path.realpath(sys._base_executable))
print(sysconfig.get_path("stdlib"))
print(os.path.dirname(pip.__file__))
P
    )
    [ -d "$pip" ] || die "Python 3 with pip is missing (Debian: apt-get install python3-pip)"
    with_libraries "$1" "$program"
    mkdir -p "$1$library" "$1$pip" "$1/usr/bin"
    tar -C "$library" --exclude=./test --exclude=./site-packages --exclude=./dist-packages --exclude='./config-*' --exclude=__pycache__ -cf - . |
        tar -C "$1$library" -xf -
    tar -C "$pip" --exclude=__pycache__ -cf - . | tar -C "$1$pip" -xf -
    # Modules in C have libraries of their own, such as OpenSSL.
    for file in "$library"/lib-dynload/*.so; do with_libraries "$1" "$file"; done
    ln -sf "$program" "$1/usr/bin/python3"
}

# with_rust ROOT : cargo and rustc, with the library for this machine. There is no linker: it builds libraries.
with_rust() {
    local host root target=lib/rustlib
    root=$(rustc --print sysroot) host=$(rustc -vV | sed -n 's/^host: //p')
    with_libraries "$1" "$root/bin/rustc" "$root/bin/cargo"
    mkdir -p "$1$root/$target/$host" "$1/usr/bin"
    cp -a "$root"/lib/*.so* "$1$root/lib/"
    cp -a "$root/$target/$host/lib" "$1$root/$target/$host/"
    ln -sf "$root/bin/rustc" "$root/bin/cargo" "$1/usr/bin/"
}

# with_go ROOT : Go, whose builds compile the library from its sources
with_go() {
    local root
    root=$(PATH="$PATH:/usr/local/go/bin" go env GOROOT) || die "Go is missing"
    mkdir -p "$1$root" "$1/usr/bin"
    tar -C "$root" -cf - ./bin ./pkg ./src ./VERSION ./go.env | tar -C "$1$root" -xf -
    ln -sf "$root/bin/go" "$1/usr/bin/go"
}
