# shellcheck shell=bash disable=SC2034,SC2153  # the files of lib/ share their variables
# Builds the cluster's programs from the pinned Go modules in ../mods, and its images from ../../images. The cache has a folder
# for each result, named by a digest of all inputs. So nothing is built twice, and checkouts share results.

# The versions of Kubernetes that a cluster can have, the default first, and the module in ../mods that pins each one, with the etcd
# that this version is tested with. containerd and runc are the same for all versions: each kubelet speaks CRI v1 to them.
KUBERNETES_VERSIONS=(1.36 1.35 1.34)
declare -A KUBERNETES_MODULES=([1.36]=kubernetes [1.35]=kubernetes-1.35 [1.34]=kubernetes-1.34)
# Programs that use Kubernetes' libraries are built with the same tags and the same versions, so that Go compiles the libraries
# once.
KUBERNETES_TAGS=selinux,notest,grpcnotrace
# Less garbage collection saves an eighth of the compiler's time.
export GOGC=${GOGC:-400}
DEFAULT_PARTS=(kubernetes etcd containerd runc netpol volumes helm images)

# patch_version MINOR : the whole version, as its module pins it
patch_version() { sed -n 's/^\tk8s\.io\/kubernetes v\([0-9.]*\).*/\1/p' "$HERE/mods/${KUBERNETES_MODULES[$1]}/go.mod"; }

# choose_kubernetes [EXISTING] : sets KUBERNETES (1.36) to the version that the environment names, else to EXISTING, else to the
# default, and KUBERNETES_VERSION (1.36.3). Call it before `build` and `link_parts`.
choose_kubernetes() {
    KUBERNETES=${KUBERNETES:-${1:-${KUBERNETES_VERSIONS[0]}}}
    [ -n "${KUBERNETES_MODULES[$KUBERNETES]:-}" ] || die "KUBERNETES='$KUBERNETES' is unknown: this checkout has ${KUBERNETES_VERSIONS[*]}"
    [ -z "${1:-}" ] || [ "$KUBERNETES" = "$1" ] ||
        die "cluster $NAME has Kubernetes $1, and KUBERNETES=$KUBERNETES asks for another version. Run '$HERE/cluster down' first, or set SPILLWAY_CLUSTER to another name"
    KUBERNETES_VERSION=$(patch_version "$KUBERNETES")
}

# recipe PART : what to build; sets the R_ variables
recipe() {
    local b c=k8s.io/component-base/version g=k8s.io/client-go/pkg/version v=$KUBERNETES_VERSION
    R_MODULE=$1 R_TAGS='' R_CGO=0 R_LD='' R_COLD='' R_OUT=("$1") R_PKGS=()
    case $1 in
        kubernetes)
            R_COLD='5 to 9 min' R_TAGS=$KUBERNETES_TAGS R_MODULE=${KUBERNETES_MODULES[$KUBERNETES]} b=${KUBERNETES#1.}
            R_LD="-X $c.gitVersion=v$v -X $c.gitMajor=1 -X $c.gitMinor=$b -X $c.gitTreeState=clean -X $g.gitVersion=v$v -X $g.gitMajor=1 -X $g.gitMinor=$b"
            R_OUT=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
            R_PKGS=("${R_OUT[@]/#/k8s.io/kubernetes/cmd/}")
            ;;
        etcd) R_COLD='30 s' R_MODULE=${KUBERNETES_MODULES[$KUBERNETES]} R_PKGS=(go.etcd.io/etcd/server/v3) ;;
        containerd)
            R_COLD='1 min' R_LD="-X github.com/containerd/containerd/v2/version.Version=2.3.7"
            R_OUT=(containerd containerd-shim-runc-v2 ctr)
            R_PKGS=("${R_OUT[@]/#/github.com/containerd/containerd/v2/cmd/}")
            ;;
        runc) R_COLD='20 s' R_CGO=1 R_TAGS=seccomp R_LD="-X main.version=1.4.3" R_PKGS=(github.com/opencontainers/runc) ;;
        coredns) R_COLD='2 min' R_PKGS=(github.com/coredns/coredns) ;;
        kwok) R_COLD='1 min' R_PKGS=(sigs.k8s.io/kwok/cmd/kwok) ;;
        versitygw) R_COLD='2 min' R_LD="-X main.Version=1.8.0" R_PKGS=(github.com/versity/versitygw/cmd/versitygw) ;;
        gitea) R_COLD='10 min' R_CGO=1 R_TAGS=sqlite,sqlite_unlock_notify R_LD="-X main.Version=1.26.0" R_PKGS=(code.gitea.io/gitea) ;;
        helm)
            R_COLD='20 s' R_MODULE=kubernetes R_TAGS=$KUBERNETES_TAGS
            # One build for all versions. This version is the one that `helm template` assumes without a cluster.
            for b in chartutil lint/rules; do
                R_LD+=" -X helm.sh/helm/v3/pkg/$b.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$b.k8sVersionMinor=36"
            done
            R_LD+=" -X helm.sh/helm/v3/internal/version.version=v3.20.2" R_PKGS=(helm.sh/helm/v3/cmd/helm)
            ;;
        # A module of its own: it needs later Kubernetes libraries than the cluster's programs.
        helm4) R_COLD='2 min' R_TAGS=$KUBERNETES_TAGS R_LD="-X helm.sh/helm/v4/internal/version.version=v4.3.2" R_PKGS=(helm.sh/helm/v4/cmd/helm) ;;
        # What a kind cluster needs besides (e2e/kind).
        kind) R_COLD='20 s' R_PKGS=(sigs.k8s.io/kind) ;;
        kubeadm)
            R_COLD='30 s' R_TAGS=$KUBERNETES_TAGS R_PKGS=(k8s.io/kubernetes/cmd/kubeadm)
            R_LD="-X $c.gitVersion=v$v -X $c.gitMajor=1 -X $c.gitMinor=36 -X $c.gitTreeState=clean"
            ;;
        crictl) R_COLD='1 min' R_LD="-X sigs.k8s.io/cri-tools/pkg/version.Version=v1.34.0" R_PKGS=(sigs.k8s.io/cri-tools/cmd/crictl) ;;
        localpath) R_COLD='1 min' R_OUT=(local-path-provisioner) R_PKGS=(github.com/rancher/local-path-provisioner) ;;
        netpol | volumes) R_COLD='5 s' R_TAGS=$KUBERNETES_TAGS R_PKGS=(.) ;;
        *) die "unknown part '$1'; --with takes dns, kwok, s3, gitea and helm4" ;;
    esac
}

find_go() {
    command -v go >/dev/null && return 0
    if [ -x /usr/local/go/bin/go ]; then PATH=$PATH:/usr/local/go/bin; return 0; fi
    die "'go' is not in PATH. Install Go 1.26.8 or newer (Go 1.21 and newer download the version that mods/*/go.mod name), then try again. Under sudo: sudo env \"PATH=\$PATH\" ..."
}

# part_dir PART : the folder of the cache for this build of it
part_dir() {
    local key
    if [ "$1" = images ]; then
        key=$({ uname -m; sha256sum "$(command -v busybox || echo /dev/null)"; cat "$REPO"/e2e/images/{build.sh,demo-agent.sh,*.c}; } | sha256sum)
    else
        recipe "$1"
        key=$({
            cat "$HERE/mods/$R_MODULE"/go.{mod,sum}
            cat "$HERE/mods/$R_MODULE"/*.go 2>/dev/null || true
            (cd "$HERE/mods/$R_MODULE" && go env GOVERSION GOOS GOARCH)
            echo "$R_TAGS|$R_CGO|$R_LD|${R_PKGS[*]}|stages-1"
        } | sha256sum)
    fi
    echo "$CACHE/build/$1-${key:0:12}"
}

# --- Debian packages ---------------------------------------------------------------------------------------------------
# Checked by the files that are used, not by package name, so that other distributions pass too.
missing_packages() {
    local b
    for b in /usr/lib/cni /opt/cni/bin; do [ -x "$b/bridge" ] && break; done
    [ -x "$b/bridge" ] || echo containernetworking-plugins
    while read -r b package; do command -v "$b" >/dev/null || echo "$package"; done <<'T'
iptables iptables
nft nftables
conntrack conntrack
ip iproute2
musl-gcc musl-tools
gcc gcc
pkg-config pkg-config
jq jq
curl curl
git git
openssl openssl
nsenter util-linux
flock util-linux
findmnt mount
pgrep procps
bwrap bubblewrap
sysctl procps
T
    # Debian's `busybox` is linked dynamically, so it does not start in an image without libraries.
    if ! b=$(command -v busybox) || ldd "$b" >/dev/null 2>&1; then echo busybox-static; fi
    [ -e /usr/include/seccomp.h ] || echo libseccomp-dev
}

need_packages() {
    local missing
    missing=$(PATH=$PATH:/usr/sbin:/sbin missing_packages | sort -u | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    say "missing Debian packages: $missing"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "install them first: sudo apt-get update && sudo apt-get install -y $missing"
    fi
    # shellcheck disable=SC2086  # a list of words
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing; } >/dev/null 2>"$CACHE/apt.log" 9>&- ||
        { tail -n 5 "$CACHE/apt.log" >&2; die "apt-get could not install: $missing"; }
    missing=$(missing_packages | sort -u | tr '\n' ' ')
    [ -z "$missing" ] || die "still missing after apt-get install: $missing"
    say "installed them"
}

# packages : installs them; tests without a cluster need them too
packages() {
    mkdir -p "$CACHE/build"
    (
        lock "$CACHE/build/.lock" build
        need_packages
    )
}

# --- the parts ---------------------------------------------------------------------------------------------------------
build_go() { # PART DIR
    local out=$2/
    recipe "$1"
    [ ${#R_OUT[@]} -gt 1 ] || out=$2/${R_OUT[0]}
    # `set -e` does not hold here where a caller has a condition.
    (
        cd "$HERE/mods/$R_MODULE" || exit 1
        CGO_ENABLED=$R_CGO go build -trimpath ${R_TAGS:+-tags "$R_TAGS"} -ldflags "-s -w $R_LD" -o "$out" "${R_PKGS[@]}" || exit 1
        # KWOK's default stages are files of its module. kwok does not start without stages.
        if [ "$1" = kwok ]; then
            stages=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
            for f in "$stages"/node/fast/*.yaml "$stages"/node/heartbeat-with-lease/*.yaml "$stages"/pod/fast/*.yaml; do
                case $f in */kustomization.yaml) ;; *) echo '---'; cat "$f" ;; esac
            done > "$2/kwok-stages.yaml"
        fi
        # Gitea reads its templates, texts and icons from files of its module. Those of the cache of modules are read-only.
        if [ "$1" = gitea ]; then
            mkdir "$2/gitea-static"
            cp -r --no-preserve=mode "$(go list -m -f '{{.Dir}}' code.gitea.io/gitea)"/{options,public,templates} "$2/gitea-static"
        fi
    )
}

build_part() { # PART DIR : built in another folder and then moved, so that an existing folder is complete
    local tmp=$2.tmp.$$ log=$CACHE/build/$1.log pid n=0
    mkdir -p "$tmp"
    if [ "$1" = images ]; then
        "$REPO/e2e/images/build.sh" --out "$tmp" --tag dev pause testbox demo-agent > "$log" 2>&1 9>&- &
    else
        build_go "$1" "$tmp" > "$log" 2>&1 9>&- &
    fi
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        sleep 0.2; n=$((n + 1))
        [ $((n % 150)) != 0 ] || say "      $1: $((n / 5)) s so far, $(wc -l < "$log") lines in $log"
    done
    if ! wait $pid; then
        rm -rf "$tmp"; tail -n 15 "$log" >&2
        die "building $1 failed; the whole output is in $log. If modules could not be fetched, check the network and 'go env GOPROXY GOFLAGS'. Finished parts stay in the cache, so you can try again"
    fi
    mv -T "$tmp" "$2" 2>/dev/null || rm -rf "$tmp"   # another checkout may have built it meanwhile
}

# build PART... : builds the parts that are not in the cache
build() {
    local part dir todo=() started i=0
    mkdir -p "$CACHE/build"
    (
        lock "$CACHE/build/.lock" build
        need_packages
        find_go
        for part in "$@"; do [ -d "$(part_dir "$part")" ] || todo+=("$part"); done
        for part in "${todo[@]}"; do
            i=$((i + 1)); started=$SECONDS
            dir=$(part_dir "$part")
            R_COLD='5 s'; [ "$part" = images ] || recipe "$part"
            say "[$i/${#todo[@]}] building $part (about $R_COLD cold) ..."
            build_part "$part" "$dir"
            say "[$i/${#todo[@]}] built $part in $((SECONDS - started)) s (total $(elapsed))"
        done
        [ ${#todo[@]} != 0 ] || say "nothing to build: $* are in $CACHE/build"
    )
}

# link_parts PART... : build what is missing, then point $BIN at this checkout's builds
link_parts() {
    local part dir f dirs=()
    find_go
    # Packages are checked also if all is built, because the cache can be older than the machine.
    if [ -n "$(PATH=$PATH:/usr/sbin:/sbin missing_packages)" ]; then build "$@"; fi
    for part in "$@"; do
        dir=$(part_dir "$part")
        [ -d "$dir" ] || build "$@"
        dirs+=("$dir")
    done
    mkdir -p "$BIN"
    echo "$KUBERNETES" > "$D/kubernetes"
    for dir in "${dirs[@]}"; do
        for f in "$dir"/*; do ln -sfn "$f" "$BIN/${f##*/}"; done
    done
}
