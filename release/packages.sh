#!/usr/bin/env bash
# Makes the packages of Debian (deb) and of Red Hat (rpm) for amd64 and arm64: `spillway` with the bridge, the launchers and the unit of
# systemd, and `kubectl-spillway`. The programs are static, so the packages depend on nothing.
#
#   release/packages.sh VERSION      after archives.sh. Needs dpkg-deb and rpmbuild (Debian: rpm)
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need dpkg-deb dpkg
need rpmbuild rpm
# In a version of both formats ~ sorts before the release: 0.2.0~rc.1 before 0.2.0.
package_version=${version/-/\~}
maintainer=${MAINTAINER:-Spillway maintainers <maintainers@example.com>}
homepage=$base_url

describe() { case $1 in
    spillway)
        summary='bridge, launchers and sandbox for AI coding agents'
        description='The programs of Spillway for a machine of a developer: the bridge, which serves programs to sandboxed agents, the sandbox for agent programs, and the launcher spillway-wrap. The same programs are the operator in its image.'
        recommends=bubblewrap
        ;;
    kubectl-spillway)
        summary='kubectl plugin that shows and steers fleets of AI coding agents'
        description='The plugin of kubectl for the Spillway operator: lists agents, pools and work, explains what blocks them, and changes them with the rights of its user.'
        recommends=''
        ;;
esac; }

# root_of PACKAGE ARCH : the tree of the package below /
root_of() {
    local root=$stage/packages/$1-$2 kind=all
    [ "$1" = spillway ] || kind=plugin
    rm -rf "$root"
    mkdir -p "$root/usr"
    cp -a "$stage/trees/$kind-$2/." "$root/usr/"
    # The tar archive is for /usr/local, a package for /usr.
    if [ -e "$root/usr/lib/systemd/user" ]; then sed -i 's#/usr/local/bin/#/usr/bin/#' "$root"/usr/lib/systemd/user/*.service; fi
    echo "$root"
}

deb() { # deb PACKAGE ARCH
    local root
    root=$(root_of "$1" "$2")
    describe "$1"
    local documents=$root/usr/share/doc/$1
    {
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: spillway\nSource: %s\n\n' "$homepage"
        printf 'Files: *\nCopyright: the Spillway authors\nLicense: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n'
        printf 'Comment: The licences of the software of others is in /usr/share/doc/%s/THIRD-PARTY.txt.gz.\n' "$1"
    } > "$documents/copyright"
    rm "$documents/LICENSE"
    gzip -9n "$documents/THIRD-PARTY.txt"
    if [ -e "$documents/CHANGELOG.md" ]; then mv "$documents/CHANGELOG.md" "$documents/changelog"; gzip -9n "$documents/changelog"; fi
    mkdir "$root/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nSection: admin\nPriority: optional\n' "$1" "$package_version" "$2" "$maintainer"
        printf 'Installed-Size: %s\nHomepage: %s\n' "$(du -sk --apparent-size --exclude DEBIAN "$root" | cut -f1)" "$homepage"
        [ -z "$recommends" ] || printf 'Recommends: %s\n' "$recommends"
        printf 'Description: %s\n' "$summary"
        fold -s -w 76 <<<"$description" | sed 's/ *$//; s/^/ /'
    } > "$root/DEBIAN/control"
    (cd "$root" && find usr -type f -printf '%P\0' | sort -z | sed -z 's#^#usr/#' | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/${1}_${package_version}_$2.deb" > /dev/null
}

rpm_package() { # rpm_package PACKAGE ARCH
    local root spec=$stage/packages/$1-$2.spec arch
    root=$(realpath "$(root_of "$1" "$2")")
    arch=$(rpm_arch "$2")
    describe "$1"
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    {
        printf 'Name: %s\nVersion: %s\nRelease: 1\nSummary: %s\nLicense: Apache-2.0\nURL: %s\nAutoReqProv: no\n' "$1" "$package_version" "${summary^}" "$homepage"
        [ -z "$recommends" ] || printf 'Recommends: %s\n' "$recommends"
        printf '\n%%description\n%s\n\n%%install\ncp -a %s/. %%{buildroot}/\n\n%%files\n' "$(fold -s -w 76 <<<"$description" | sed 's/ *$//')" "$root"
        (cd "$root" && find usr -type f -printf '/%p\n' | sort | sed -E 's#^(/usr/share/doc/[^/]+/LICENSE|.*/THIRD-PARTY.txt)$#%license \1#; s#^(/usr/share/(doc|man)/.*)$#%doc \1#')
    } > "$spec"
    # The programs are built and stripped already. Nothing that names this machine or this minute is written.
    rpmbuild -bb --quiet --target "$arch-linux" --define "_topdir $(realpath "$stage")/rpmbuild" --define "_rpmdir $(realpath "$dist")" \
        --define '_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm' --define '_buildhost spillway' --define 'debug_package %{nil}' \
        --define '__os_install_post %{nil}' --define '_build_id_links none' --define 'use_source_date_epoch_as_buildtime 1' \
        --define 'clamp_mtime_to_source_date_epoch 1' --define 'source_date_epoch_from_changelog 0' --define '_binary_payload w6.xzdio' \
        --define '__brp_strip %{nil}' --define '_docdir /usr/share/doc' "$spec" > /dev/null
}

for arch in "${LINUX[@]}"; do
    for package in spillway kubectl-spillway; do
        deb "$package" "$arch"
        rpm_package "$package" "$arch"
    done
done
say "wrote $(find "$dist" -name '*.deb' | wc -l) deb and $(find "$dist" -name '*.rpm' | wc -l) rpm packages"
