#!/usr/bin/env bash
# Makes container images without Docker, a registry or a base image: tar writes docker archives from static binaries. The same
# input gives the same bytes (fixed times, owners and order), so an image's digest changes only with its content.
set -euo pipefail

usage() {
    cat <<'U'
Usage: e2e/images/build.sh --out DIR [--tag TAG] [--binary FILE] [--agent-binary FILE] [--model-server FILE] [--attacks FILE] [--arch ARCH] IMAGE...

IMAGE  spillway     localhost/spillway/spillway:TAG    only /bin/spillway and /spillway-agent, uid 65532; needs --binary
       demo-agent   localhost/spillway/demo-agent:TAG  busybox, user agent (10001); prints a line every 5 s, ends at SIGTERM
       git-agent    localhost/spillway/git-agent:TAG   the demo agent with git, which can fetch and push by HTTP
       attack-agent localhost/spillway/attack-agent:TAG  the demo agent with the attacks of crates/sandbox; needs --attacks
       codex-agent  localhost/spillway/codex-agent:TAG Codex from npm (pinned by codex/package-lock.json), busybox, bash, git, root
                                                       certificates; user agent (10001); runs one item (codex-agent.sh)
       packages-agent localhost/spillway/packages-agent:TAG  the demo agent with npm, pip, cargo and go, and root certificates
       model-server localhost/spillway/model-server:TAG  only the scripted model server, uid 65532; needs --model-server
       pause        localhost/spillway/pause:TAG       the sandbox container; also writes the static program DIR/pause
       testbox      localhost/spillway/testbox:TAG     busybox with `landlock` and `eat` (memory), for the cluster's checks
       all          all images except git-agent, attack-agent, codex-agent, packages-agent and model-server (spillway only with --binary)

--tag TAG      default: $SPILLWAY_IMAGE_TAG, else dev
--binary FILE  static spillway binary; default: $SPILLWAY_BINARY
--agent-binary FILE  static spillway-agent binary; default: $SPILLWAY_AGENT_BINARY, else spillway-agent in the folder of --binary
--model-server FILE  static spillway-model-server binary
--attacks FILE       static spillway-attacks binary
--arch ARCH          amd64 or arm64, of the programs of the image spillway; default: that of this machine
Writes DIR/IMAGE.tar, for `e2e/cluster/cluster load`, `kind load image-archive` or `ctr -n k8s.io images import`.
Needs: tar, sha256sum; musl-gcc (Debian: musl-tools) for pause and testbox; a static busybox (Debian: busybox-static);
git for git-agent; npm, bash, git and ca-certificates for codex-agent; npm, Python 3 with pip, Rust, Go and ca-certificates for
packages-agent.
U
}

die() { echo "images: $*" >&2; exit 1; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=e2e/images/toolchains.sh
source "$here/toolchains.sh"
out='' tag=${SPILLWAY_IMAGE_TAG:-dev} binary=${SPILLWAY_BINARY:-} agent_binary=${SPILLWAY_AGENT_BINARY:-} model_server='' attacks='' arch='' images=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:?--out needs a folder}; shift 2 ;;
        --tag) tag=${2:?--tag needs a tag}; shift 2 ;;
        --binary) binary=${2:?--binary needs a file}; shift 2 ;;
        --agent-binary) agent_binary=${2:?--agent-binary needs a file}; shift 2 ;;
        --model-server) model_server=${2:?--model-server needs a file}; shift 2 ;;
        --attacks) attacks=${2:?--attacks needs a file}; shift 2 ;;
        --arch) arch=${2:?--arch needs an architecture}; shift 2 ;;
        -h | --help) usage; exit 0 ;;
        -*) usage >&2; exit 2 ;;
        all) images+=(pause testbox demo-agent); [ -z "$binary" ] || images+=(spillway); shift ;;
        *) images+=("$1"); shift ;;
    esac
done
if [ -z "$out" ] || [ ${#images[@]} = 0 ]; then usage >&2; exit 2; fi
case $(uname -m) in
    x86_64) machine=amd64 ;;
    aarch64 | arm64) machine=arm64 ;;
    *) die "the architecture $(uname -m) is not supported (x86_64, aarch64)" ;;
esac
case ${arch:=$machine} in amd64 | arm64) ;; *) die "--arch takes amd64 or arm64" ;; esac
# The other images contain programs of this machine.
[ "$arch" = "$machine" ] || [ "${images[*]}" = spillway ] || die "only the image spillway can be made for another architecture"
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
    # Written under another name and then moved, so that a reader never sees a part of an archive.
    reproducible_tar -C "$dir" -cf "$out/.$name.tar.$$" manifest.json "$id.json" layer.tar
    mv "$out/.$name.tar.$$" "$out/$name.tar"
    echo "$out/$name.tar  localhost/spillway/$name:$tag  sha256:$id"
}

# A dynamically linked binary cannot start in an image without a loader.
must_be_static() {
    [ -f "$1" ] || die "$1 is missing; $2"
    [ -x "$1" ] || die "$1 is not an executable file"
    command -v readelf >/dev/null || return 0
    if readelf -lW "$1" 2>/dev/null | grep -q INTERP; then die "$1 is linked dynamically; $2"; fi
}

certificates=/etc/ssl/certs/ca-certificates.crt
build_it='build it with RUSTFLAGS="-C target-feature=+crt-static" and --target'

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

# with_libraries ROOT PROGRAM... : programs of this machine, each with its libraries, at the same paths
with_libraries() {
    local root=$1 file; shift
    for file in "$@"; do
        install -D -m 755 "$file" "$root$file"
        # A line is `name => /path (address)`, or the loader's `/path (address)`. A library may need no other.
        ldd "$file" | { grep -oE '/[^ ]+' || true; } | while read -r library; do
            [ -e "$root$library" ] || install -D -m 755 "$library" "$root$library"
        done
    done
}

# demo_agent_root DIR : the demo agent's root file system
demo_agent_root() {
    busybox_root "$1"
    mkdir -p "$1/home/agent"; chmod 777 "$1/home/agent"   # tar sets owner 0, so the mode lets the agent write to its home
    printf 'root:x:0:0::/root:/bin/sh\nagent:x:10001:10001::/home/agent:/bin/sh\n' > "$1/etc/passwd"
    printf 'root:x:0:\nagent:x:10001:\n' > "$1/etc/group"
    install -m 755 "$here/demo-agent.sh" "$1/bin/demo-agent"
}

# with_git ROOT : git, and its program for repositories at an HTTP server
with_git() {
    local programs helper
    programs=$(git --exec-path)
    helper=$programs/git-remote-http
    [ -x "$helper" ] || die "git on this machine cannot use HTTP: $helper is missing"
    with_libraries "$1" "$(realpath "$(command -v git)")" "$(realpath "$helper")"
    mkdir -p "$1$programs" "$1/usr/share/git-core/templates"   # without the templates git prints a warning at each `init`
    for name in git-remote-http git-remote-https; do
        [ -e "$1$programs/$name" ] || ln -s "$(realpath "$helper")" "$1$programs/$name"
    done
}

# codex_package : the folder of Codex's native program, fetched once. npm checks downloads by the digests of the lock file.
codex_package() {
    local cache native
    cache=${SPILLWAY_CACHE:-$HOME/.cache/spillway}/codex-$(sha256sum "$here/codex/package-lock.json" | cut -c1-12)
    if [ ! -e "$cache/done" ]; then
        command -v npm >/dev/null || die "npm is missing (Debian: apt-get install npm)"
        rm -rf "$cache"; mkdir -p "$cache"
        cp "$here/codex/package.json" "$here/codex/package-lock.json" "$cache/"
        # One retry only, so that an unreachable npm is reported soon. npm itself does not end a download that stalls in its middle.
        timeout 15m npm ci --prefix "$cache" --ignore-scripts --no-audit --no-fund --loglevel=error --fetch-retries=1 --fetch-timeout=60000 >&2 ||
            die "npm cannot fetch the package of Codex"
        touch "$cache/done"
    fi
    native=$(find "$cache/node_modules/@openai" -path '*/vendor/*-linux-musl' -prune -print)
    [ -d "$native" ] || die "$cache has no program for this machine; remove that folder and try again"
    echo "$native"
}

# codex_inputs PACKAGE : a digest of the image's inputs. The image takes long to write, and seldom changes.
codex_inputs() {
    { echo "$tag $1"; sha256sum "$here/build.sh" "$here/codex-agent.sh" "$(command -v busybox)" "$(command -v bash)" "$(command -v git)" \
        "$certificates"; } | sha256sum | cut -d' ' -f1
}

for image in "${images[@]}"; do
    root=$work/$image
    rm -rf "$root"; mkdir -p "$root"
    chmod 755 "$root"
    case $image in
        spillway)
            [ -n "$binary" ] || die "image spillway needs --binary FILE (target/$(uname -m)-unknown-linux-gnu/release/spillway)"
            # Both programs of every agent's pod come from this image. Without spillway-agent no agent's pod starts.
            agent=${agent_binary:-$(dirname "$binary")/spillway-agent}
            must_be_static "$binary" "$build_it"
            must_be_static "$agent" "$build_it"
            # Not /spillway: the sidecar, which runs this image, has its volumes under a folder of that name.
            install -d -m 755 "$root/bin"
            install -m 755 "$binary" "$root/bin/spillway"
            install -m 755 "$agent" "$root/spillway-agent"
            archive spillway "$root" '{"Entrypoint":["/bin/spillway"],"User":"65532:65532","WorkingDir":"/"}'
            ;;
        git-agent)
            command -v git >/dev/null || die "git is missing (Debian: apt-get install git)"
            demo_agent_root "$root"
            with_git "$root"
            archive git-agent "$root" '{"Entrypoint":null,"Cmd":["/bin/demo-agent"],"Env":["PATH=/bin:/usr/bin","HOME=/home/agent"],"User":"10001:10001","WorkingDir":"/home/agent"}'
            ;;
        attack-agent)
            [ -n "$attacks" ] || die "image attack-agent needs --attacks FILE"
            must_be_static "$attacks" "$build_it"
            demo_agent_root "$root"
            install -m 755 "$attacks" "$root/bin/spillway-attacks"
            # A volume of the image is a mount that no agent is granted. The runtime fills it with the files of the image.
            install -d -m 777 "$root/foreign"
            for name in secret long remove; do echo foreign > "$root/foreign/$name"; chmod 666 "$root/foreign/$name"; done
            archive attack-agent "$root" '{"Entrypoint":null,"Cmd":["/bin/demo-agent"],"Volumes":{"/foreign":{}},"Env":["PATH=/bin","HOME=/home/agent"],"User":"10001:10001","WorkingDir":"/home/agent"}'
            ;;
        packages-agent)
            demo_agent_root "$root"
            for language in node python rust go; do "with_$language" "$root"; done
            ln -s ../../bin/busybox "$root/usr/bin/env"
            install -D -m 644 "$certificates" "$root$certificates"
            archive packages-agent "$root" '{"Entrypoint":null,"Cmd":["/bin/demo-agent"],"Env":["PATH=/bin:/usr/bin","HOME=/home/agent"],"User":"10001:10001","WorkingDir":"/home/agent"}'
            ;;
        demo-agent)
            demo_agent_root "$root"
            archive demo-agent "$root" '{"Entrypoint":null,"Cmd":["/bin/demo-agent"],"Env":["PATH=/bin","HOME=/home/agent"],"User":"10001:10001","WorkingDir":"/home/agent"}'
            ;;
        codex-agent)
            for needed in bash git busybox; do
                command -v $needed >/dev/null || die "$needed is missing (Debian: apt-get install bash git busybox-static)"
            done
            native=$(codex_package)
            inputs=$(codex_inputs "$native")
            if [ -s "$out/codex-agent.tar" ] && [ "$(cat "$out/.codex-agent.inputs" 2>/dev/null)" = "$inputs" ]; then
                echo "$out/codex-agent.tar  localhost/spillway/codex-agent:$tag  as it is"
                continue
            fi
            busybox_root "$root"
            mkdir -p "$root/home/agent" "$root/workspace"; chmod 777 "$root/home/agent" "$root/workspace"   # as the demo agent's
            printf 'root:x:0:0::/root:/bin/bash\nagent:x:10001:10001::/home/agent:/bin/bash\n' > "$root/etc/passwd"
            printf 'root:x:0:\nagent:x:10001:\n' > "$root/etc/group"
            # Only the files that it needs without a person: not those for voice, nor its own sandbox (the pod is one).
            install -m 755 "$native/bin/codex" "$native/bin/codex-code-mode-host" "$native/codex-path/rg" "$root/bin/"
            must_be_static "$root/bin/codex" "the package of Codex has changed"
            rm -f "$root/bin/bash"   # busybox's link
            with_libraries "$root" "$(realpath "$(command -v bash)")"
            with_git "$root"
            [ -e "$root/bin/bash" ] || ln -s ../usr/bin/bash "$root/bin/bash"
            ln -s ../../bin/busybox "$root/usr/bin/env"
            # Codex sets this locale for every command. Without it each command begins with a warning.
            mkdir -p "$root/usr/lib/locale"; cp -r /usr/lib/locale/C.utf8 "$root/usr/lib/locale/"
            install -D -m 644 "$certificates" "$root$certificates"
            install -m 755 "$here/codex-agent.sh" "$root/bin/codex-agent"
            archive codex-agent "$root" '{"Entrypoint":null,"Cmd":["/bin/codex-agent"],"Env":["PATH=/bin:/usr/bin","HOME=/home/agent"],"User":"10001:10001","WorkingDir":"/workspace"}'
            echo "$inputs" > "$out/.codex-agent.inputs"
            ;;
        model-server)
            [ -n "$model_server" ] || die "image model-server needs --model-server FILE"
            must_be_static "$model_server" "$build_it"
            install -D -m 755 "$model_server" "$root/bin/spillway-model-server"
            archive model-server "$root" '{"Entrypoint":["/bin/spillway-model-server"],"User":"65532:65532","WorkingDir":"/"}'
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
        *) die "unknown image $image (spillway, demo-agent, git-agent, attack-agent, codex-agent, packages-agent, model-server, pause, testbox, all)" ;;
    esac
done
