# shellcheck shell=bash disable=SC2034  # the scripts that read this file use its variables
# Read by each script of this folder, with the version as its first argument. It sets the folders and the values that must be the
# same in all steps, and checks the version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { echo "release: $*" >&2; exit 1; }
say() { echo "release: $*"; }

version=${1:-}
[[ $version =~ ^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.]+)?$ ]] ||
    die "VERSION must be a version without a v, such as 0.1.0, and not '$version'"
tag=v$version
# The published files, and what is needed to make them. again.sh sets other folders.
dist=${RELEASE_DIST:-target/release-$version}
stage=${RELEASE_STAGE:-target/release-$version-stage}
# The image as an OCI layout, which is also in the archive of the image
layout=$stage/oci
commit=$(git rev-parse HEAD)
# Archives, packages and images have the time of the commit, so that a second build of it gives the same bytes.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
# Where images and the chart are pushed. A registry on this machine is started for the dry run.
registry=${REGISTRY:-localhost:5117}
# Where people download the other files: an address without a slash at its end.
base_url=${BASE_URL:-https://example.com/spillway/$tag}
tools=$(realpath -ms "${SPILLWAY_CACHE:-$HOME/.cache/spillway}/tools/bin")

# A local registry has no certificate.
is_local() { [[ $registry =~ ^(localhost|127\.0\.0\.1):[0-9]+$ ]]; }
# Settings of regctl for such a registry are not for its user.
! is_local || export REGCTL_CONFIG=$PWD/$stage/regctl.json
# True for a build that may be published: the commit has the version's tag.
is_tagged() { [ "$(git tag --points-at HEAD --list "$tag")" = "$tag" ]; }
need() { # need PROGRAM PACKAGE
    command -v "$1" > /dev/null || die "$1 is missing (Debian: apt-get install $2)"
}
# tar with fixed owners and order, and with the time of the commit
reproducible_tar() { tar --sort=name --format=gnu --numeric-owner --owner=0 --group=0 --mtime="@$SOURCE_DATE_EPOCH" "$@"; }
sha256() { sha256sum "$1" | cut -d' ' -f1; }

# The architectures of Linux, by the names of Go and Debian, and the other names of the same.
LINUX=(amd64 arm64)
rust_target() { case $1 in
    linux-amd64) echo x86_64-unknown-linux-gnu ;;
    linux-arm64) echo aarch64-unknown-linux-gnu ;;
    darwin-amd64) echo x86_64-apple-darwin ;;
    darwin-arm64) echo aarch64-apple-darwin ;;
    windows-amd64) echo x86_64-pc-windows-gnu ;;
    *) die "unknown platform $1" ;;
esac; }
rpm_arch() { case $1 in amd64) echo x86_64 ;; arm64) echo aarch64 ;; *) die "unknown architecture $1" ;; esac; }
# Platforms of the plugin, in the order of the manifests.
PLUGIN_PLATFORMS=(linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64)
# built PLATFORM PROGRAM : the path of a built program
built() {
    local suffix=''
    [[ $1 != windows-* ]] || suffix=.exe
    echo "target/release-build/$(rust_target "$1")/release/$2$suffix"
}
# The digest of the image for all architectures
image_digest() { "$tools/regctl" image digest "ocidir://$layout:$version"; }
