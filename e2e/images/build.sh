#!/usr/bin/env bash
# Makes container images without Docker, a registry or a base image: docker archives written by tar from static binaries.
# The same input gives the same bytes (fixed times, owners and order), so an image's digest changes only with its content.
set -euo pipefail

usage() {
    cat <<'U'
Usage: e2e/images/build.sh --out DIR [--tag TAG] [--binary FILE] IMAGE...

IMAGE  spillway     localhost/spillway/spillway:TAG    /spillway alone, uid 65532; needs --binary or SPILLWAY_BINARY
       demo-agent   localhost/spillway/demo-agent:TAG  busybox, user agent (10001), prints a line every 5 s, ends at SIGTERM
       pause        localhost/spillway/pause:TAG       the sandbox container; also writes the static program DIR/pause
       testbox      localhost/spillway/testbox:TAG     busybox with `landlock` and `eat` (memory), for the cluster's checks
       all          all of them (spillway only when a binary is given)

--tag TAG      default: $SPILLWAY_IMAGE_TAG, else dev
--binary FILE  static spillway binary; default: $SPILLWAY_BINARY
Writes DIR/IMAGE.tar, for `e2e/cluster/cluster load`, `kind load image-archive` or `ctr -n k8s.io images import`.
Needs: tar, sha256sum; musl-gcc (Debian: musl-tools) for pause and testbox; a static busybox (Debian: busybox-static).
U
}

die() { echo "images: $*" >&2; exit 1; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out='' tag=${SPILLWAY_IMAGE_TAG:-dev} binary=${SPILLWAY_BINARY:-} images=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:?--out needs a folder}; shift 2 ;;
        --tag) tag=${2:?--tag needs a tag}; shift 2 ;;
        --binary) binary=${2:?--binary needs a file}; shift 2 ;;
        -h | --help) usage; exit 0 ;;
        -*) usage >&2; exit 2 ;;
        all) images+=(pause testbox demo-agent); [ -z "$binary" ] || images+=(spillway); shift ;;
        *) images+=("$1"); shift ;;
    esac
done
if [ -z "$out" ] || [ ${#images[@]} = 0 ]; then usage >&2; exit 2; fi
case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64 | arm64) arch=arm64 ;;
    *) die "no name known for the architecture $(uname -m)" ;;
esac
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

reproducible_tar() { tar --sort=name --format=gnu --numeric-owner --owner=0 --group=0 --mtime=@0 "$@"; }

# archive NAME ROOTFS CONFIG_JSON : one layer and its manifest
archive() {
    local name=$1 root=$2 config=$3 dir=$work/archive id layer
    rm -rf "$dir"; mkdir "$dir"
    reproducible_tar -C "$root" -cf "$dir/layer.tar" .
    layer=$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)
    printf '{"architecture":"%s","os":"linux","created":"1970-01-01T00:00:00Z","config":%s,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$arch" "$config" "$layer" > "$dir/config.json"
    id=$(sha256sum "$dir/config.json" | cut -d' ' -f1)
    mv "$dir/config.json" "$dir/$id.json"
    printf '[{"Config":"%s.json","RepoTags":["localhost/spillway/%s:%s"],"Layers":["layer.tar"]}]' "$id" "$name" "$tag" > "$dir/manifest.json"
    # Written beside and moved: a reader never sees half an archive.
    reproducible_tar -C "$dir" -cf "$out/.$name.tar.$$" manifest.json "$id.json" layer.tar
    mv "$out/.$name.tar.$$" "$out/$name.tar"
    echo "$out/$name.tar  localhost/spillway/$name:$tag  sha256:$id"
}

# A binary that asks for a loader cannot start in an image that has nothing else.
must_be_static() {
    [ -x "$1" ] || die "$1 is not an executable file"
    command -v readelf >/dev/null || return 0
    if readelf -lW "$1" 2>/dev/null | grep -q INTERP; then die "$1 is linked dynamically; $2"; fi
}

compile() {
    command -v musl-gcc >/dev/null || die "musl-gcc is missing (Debian: apt-get install musl-tools)"
    musl-gcc -static -Os -s -o "$2" "$1"
}

# busybox_root DIR : a root file system with busybox and its links
busybox_root() {
    local busybox a
    busybox=$(command -v busybox) || die "busybox is missing (Debian: apt-get install busybox-static)"
    must_be_static "$busybox" "install a static busybox (Debian: apt-get install busybox-static)"
    mkdir -p "$1"/{bin,etc,tmp,proc,sys,dev,root}
    chmod 1777 "$1/tmp"
    install -m 755 "$busybox" "$1/bin/busybox"
    for a in $("$busybox" --list); do [ "$a" = busybox ] || ln -s busybox "$1/bin/$a"; done
}

for image in "${images[@]}"; do
    root=$work/$image
    rm -rf "$root"; mkdir -p "$root"
    chmod 755 "$root"
    case $image in
        spillway)
            [ -n "$binary" ] || die "image spillway needs --binary FILE (target/$(uname -m)-unknown-linux-gnu/release/spillway)"
            must_be_static "$binary" 'build it with RUSTFLAGS="-C target-feature=+crt-static" and --target'
            install -m 755 "$binary" "$root/spillway"
            archive spillway "$root" '{"Entrypoint":["/spillway"],"User":"65532:65532","WorkingDir":"/"}'
            ;;
        demo-agent)
            busybox_root "$root"
            mkdir -p "$root/home/agent"; chmod 777 "$root/home/agent"   # tar writes owner 0: open, so that the agent can write its home
            printf 'root:x:0:0::/root:/bin/sh\nagent:x:10001:10001::/home/agent:/bin/sh\n' > "$root/etc/passwd"
            printf 'root:x:0:\nagent:x:10001:\n' > "$root/etc/group"
            install -m 755 "$here/demo-agent.sh" "$root/bin/demo-agent"
            archive demo-agent "$root" '{"Entrypoint":null,"Cmd":["/bin/demo-agent"],"Env":["PATH=/bin","HOME=/home/agent"],"User":"10001:10001","WorkingDir":"/home/agent"}'
            ;;
        pause)
            compile "$here/pause.c" "$out/pause"
            install -m 755 "$out/pause" "$root/pause"
            archive pause "$root" '{"Entrypoint":["/pause"],"User":"65535:65535","WorkingDir":"/"}'
            ;;
        testbox)
            busybox_root "$root"
            for p in landlock eat; do compile "$here/$p.c" "$root/bin/$p"; done
            printf 'root:x:0:0::/root:/bin/sh\nagent:x:10001:10001::/tmp:/bin/sh\n' > "$root/etc/passwd"
            printf 'root:x:0:\nagent:x:10001:\n' > "$root/etc/group"
            archive testbox "$root" '{"Entrypoint":["/bin/sh"],"Env":["PATH=/bin"],"WorkingDir":"/"}'
            ;;
        *) die "no image named $image (spillway, demo-agent, pause, testbox, all)" ;;
    esac
done
