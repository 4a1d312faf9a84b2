#!/usr/bin/env bash
# Checks the files of a release: that all are there and no others, their checksums and signatures, their content, and that they can be
# installed: deb and rpm in an empty root, the plugin by Krew, the formula. Programs are started where this machine can.
#
#   release/check.sh VERSION      after sign.sh. Needs root (chroot), rpm, unzip, ruby, man-db, Python 3, and qemu-user-static for arm64
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=release/cosign.sh
source release/cosign.sh
# shellcheck source=release/checks.sh
source release/checks.sh
set +e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package_version=${version/-/\~}
# A missing program, key or file gives another message.
wrong='failed to verify signature'

# --- the files, their checksums, signatures and provenance --------------------------------------------------------------
expected() {
    local arch platform package
    for platform in "${PLUGIN_PLATFORMS[@]}"; do
        [[ $platform == windows-* ]] && echo "kubectl-spillway-$tag-$platform.zip" || echo "kubectl-spillway-$tag-$platform.tar.gz"
    done
    for arch in "${LINUX[@]}"; do
        echo "spillway-$version-linux-$arch.tar.gz"
        for package in spillway kubectl-spillway; do
            echo "${package}_${package_version}_$arch.deb"
            echo "$package-$package_version-1.$(rpm_arch "$arch").rpm"
        done
    done
    printf '%s\n' kubectl-spillway.rb spillway.krew.yaml "spillway-$version.tgz" "spillway-image-$version.oci.tar" \
        "spillway-$version.spdx.json" "kubectl-spillway-$version.spdx.json" NOTES.md cosign.pub SHA256SUMS SHA256SUMS.sigstore.json \
        "spillway-$version.provenance.json" "spillway-$version.provenance.json.sigstore.json"
}
check "all files are there, and no others" equal "$(expected | sort)" "$(find "$dist" -mindepth 1 -printf '%P\n' | sort)"
check "no file is empty" equal "" "$(find "$dist" -empty)"
check "the checksums are right" bash -c "cd '$dist' && sha256sum --check --quiet --strict SHA256SUMS"
check "the checksums name all files but the signatures" equal "$(expected | grep -vE '^SHA256SUMS|sigstore' | sort)" "$(awk '{ print $2 }' "$dist/SHA256SUMS" | sort)"
blob() { cosign verify-blob "${verifying[@]}" --bundle "$dist/SHA256SUMS.sigstore.json" "$1"; }
check "cosign verifies the checksums" blob "$dist/SHA256SUMS"
sed '1s/^./x/' "$dist/SHA256SUMS" > "$work/SHA256SUMS"
refused "cosign refuses changed checksums" "$wrong" blob "$work/SHA256SUMS"
COSIGN_PASSWORD='' cosign generate-key-pair --output-key-prefix "$work/foreign" > /dev/null 2>&1
refused "cosign refuses the signature of another key" "$wrong" cosign verify-blob --key "$work/foreign.pub" --insecure-ignore-tlog=true --bundle "$dist/SHA256SUMS.sigstore.json" "$dist/SHA256SUMS"
provenance() { cosign verify-blob-attestation "${verifying[@]}" --type slsaprovenance1 --bundle "$dist/spillway-$version.provenance.json.sigstore.json" "$1"; }
while read -r file; do check "cosign verifies the provenance of $file" provenance "$dist/$file"; done < <(expected | grep -vE '^(cosign\.pub|SHA256SUMS|.*provenance.*)')
refused "cosign refuses the provenance of another file" "$wrong" provenance LICENSE
check "the provenance names the commit" grep -qF "\"gitCommit\": \"$commit\"" "$dist/spillway-$version.provenance.json"

# --- archives ----------------------------------------------------------------------------------------------------------
# unpack FILE : into a new folder, which it prints
unpack() {
    local folder=$work/unpacked/${1##*/}
    mkdir -p "$folder"
    case $1 in *.zip) unzip -q "$1" -d "$folder" ;; *) tar -xzf "$1" -C "$folder" ;; esac && echo "$folder"
}
content() { equal "$1" "$(cd "$2" && find . -type f -printf '%P\n' | sort)"; }
for platform in "${PLUGIN_PLATFORMS[@]}"; do
    file=$dist/kubectl-spillway-$tag-$platform.tar.gz program=kubectl-spillway
    [[ $platform != windows-* ]] || file=${file%.tar.gz}.zip program=kubectl-spillway.exe
    folder=$(unpack "$file")
    check "${file##*/} has the plugin and its licences" content "$(printf '%s\n' LICENSE THIRD-PARTY.txt "$program" | sort)" "$folder"
    check "${file##*/} has the program that was built" cmp "$folder/$program" "$(built "$platform" kubectl-spillway)"
    check "${file##*/} has licences of other software" grep -q '^rustls [0-9]' "$folder/THIRD-PARTY.txt"
done
for arch in "${LINUX[@]}"; do
    file=$dist/spillway-$version-linux-$arch.tar.gz
    folder=$(unpack "$file")/spillway-$version-linux-$arch
    check "${file##*/} has the programs" content "$(printf '%s\n' kubectl-spillway spillway spillway-agent spillway-wrap)" "$folder/bin"
    for path in lib/systemd/user/spillway-bridge.service share/doc/spillway/LICENSE share/doc/spillway/THIRD-PARTY.txt \
        share/bash-completion/completions/{spillway,kubectl-spillway} share/zsh/site-functions/{_spillway,_kubectl-spillway} \
        share/fish/vendor_completions.d/{spillway,kubectl-spillway}.fish \
        share/man/man1/{spillway,spillway-bridge,spillway-agent,spillway-agent-sandbox,kubectl-spillway,kubectl-spillway-submit}.1.gz; do
        check "${file##*/} has $path" test -s "$folder/$path"
    done
    times() { tar -tvzf "$file" --full-time | awk '{ print $2, $4, $5 }' | sort -u; }
    check "${file##*/} has the time of the commit and no user of this machine" equal "0/0 $(date -u -d "@$SOURCE_DATE_EPOCH" '+%F %T')" "$(times)"
    mkdir -p "$work/bin-$arch"; cp "$folder"/bin/{spillway,spillway-agent,kubectl-spillway} "$work/bin-$arch/"
    check "the programs of linux-$arch are of that platform, static, and start" release/programs.py "$version" "linux-$arch" "$work/bin-$arch"
done
for platform in darwin-amd64 darwin-arm64 windows-amd64; do
    check "the plugin is a program of $platform" release/programs.py "$version" "$platform" "$(dirname "$(built "$platform" kubectl-spillway)")"
done

# --- man pages and completion ------------------------------------------------------------------------------------------
folder=$work/unpacked/spillway-$version-linux-amd64.tar.gz/spillway-$version-linux-amd64
pages() { # each page has a name and a description, and is formatted without a warning (but those about long words in a line)
    local page said wrong=0
    for page in "$folder"/share/man/man1/*.gz; do
        said=$(lexgrog "$page" 2>&1) && grep -qE "\"$(basename "$page" .1.gz) - [A-Za-z]" <<<"$said" || { echo "$page: $said"; wrong=1; }
        said=$(MANROFFOPT='-rHY=0 -Wbreak' man --warnings -E UTF-8 -l -Tutf8 "$page" 2>&1 > /dev/null) && [ -z "$said" ] || { echo "$page: $said"; wrong=1; }
    done
    return $wrong
}
check "the man pages are well formed" pages
completes() { # completes PROGRAM WORD EXPECTED : bash offers EXPECTED after "PROGRAM WORD"
    env -i "PATH=$PATH" bash --norc --noprofile -c 'source "$1"; COMP_WORDS=("$2" "$3"); COMP_CWORD=1; COMP_LINE="$2 $3"; COMP_POINT=${#COMP_LINE}
        function=$(complete -p "$2" | sed -E "s/.* -F ([^ ]+) .*/\1/"); "$function" "$2" "$3" "$2"; printf "%s\n" "${COMPREPLY[@]}" | grep -qx -- "$4"' \
        - "$folder/share/bash-completion/completions/$1" "$1" "$2" "$3"
}
check "bash completes commands of kubectl-spillway" completes kubectl-spillway ex explain
check "bash completes commands of spillway" completes spillway bri bridge

# --- deb and rpm -------------------------------------------------------------------------------------------------------
new_root() { rm -rf "${work:?}/root"; mkdir -p "$work/root/var/lib/dpkg/info" "$work/root/var/lib/dpkg/updates" "$work/root/etc"; touch "$work/root/var/lib/dpkg/status"; }
starts_in_root() { # starts_in_root ARCH PROGRAM WORD
    case $1 in
        amd64) chroot "$work/root" "/usr/bin/$2" "$3" ;;
        *) qemu-aarch64-static "$work/root/usr/bin/$2" "$3" ;;
    esac | grep -qwF -- "$version"
}
files_of() { (cd "$work/root" && find usr -type f | sort); }
for arch in "${LINUX[@]}"; do
    new_root
    for package in spillway kubectl-spillway; do
        file=$dist/${package}_${package_version}_$arch.deb
        check "dpkg installs ${file##*/} in an empty root" dpkg --root="$work/root" --force-architecture --log=/dev/null -i "$file"
        check "${package} of $arch has the status of an installed package" equal "install ok installed" "$(dpkg-query --admindir="$work/root/var/lib/dpkg" -W -f '${Status}' "$package" 2>/dev/null)"
        check "dpkg verifies the files of $package of $arch" equal "" "$(dpkg --root="$work/root" --verify "$package")"
    done
    check "spillway of the deb starts ($arch)" starts_in_root "$arch" spillway --version
    check "spillway-agent of the deb starts ($arch)" starts_in_root "$arch" spillway-agent --version
    check "kubectl-spillway of the deb starts ($arch)" starts_in_root "$arch" kubectl-spillway version
    unit=$work/root/usr/lib/systemd/user/spillway-bridge.service
    check "the unit starts an installed program ($arch)" test -x "$work/root$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$unit")"
    check "the launcher is installed ($arch)" test -x "$work/root/usr/bin/spillway-wrap"
    check "the documents of Debian are there ($arch)" test -s "$work/root/usr/share/doc/spillway/copyright" -a -s "$work/root/usr/share/doc/spillway/changelog.gz"
    deb_files=$(files_of | grep -v '^usr/share/doc/')
    check "dpkg removes both ($arch)" dpkg --root="$work/root" --log=/dev/null -P spillway kubectl-spillway
    check "nothing is left ($arch)" equal "" "$(files_of)"

    new_root
    machine=$(rpm_arch "$arch")
    for package in spillway kubectl-spillway; do
        file=$dist/$package-$package_version-1.$machine.rpm
        check "rpm installs ${file##*/} in an empty root" rpm --root "$work/root" --ignorearch --noscripts -i "$file"
        check "rpm verifies the files of $package of $arch" equal "" "$(rpm --root "$work/root" -V "$package")"
        check "${file##*/} is of this platform" equal "$machine $version" "$(rpm -qp --qf '%{ARCH} %{VERSION}' "$file" 2>/dev/null | tr '~' -)"
    done
    check "deb and rpm have the same files ($arch)" equal "$deb_files" "$(files_of | grep -v '^usr/share/doc/')"
    check "spillway of the rpm starts ($arch)" starts_in_root "$arch" spillway --version
done
if command -v systemd-analyze > /dev/null; then
    cp "$work/root/usr/lib/systemd/user/spillway-bridge.service" "$work/"
    sed -i "s#/usr/bin/#$folder/bin/#" "$work/spillway-bridge.service"
    check "systemd accepts the unit" equal "" "$(systemd-analyze verify --user --man=no "$work/spillway-bridge.service" 2>&1 | grep -F spillway-bridge)"
fi

# --- Krew and Homebrew -------------------------------------------------------------------------------------------------
krew_install() { # krew_install OS ARCH ARCHIVE
    rm -rf "$work/krew"
    KREW_ROOT=$work/krew KREW_OS=$1 KREW_ARCH=$2 "$tools/krew" install --manifest "$dist/spillway.krew.yaml" --archive "$3"
}
for platform in "${PLUGIN_PLATFORMS[@]}"; do
    os=${platform%-*} arch=${platform#*-} file=$dist/kubectl-spillway-$tag-$platform.tar.gz
    [ "$os" != windows ] || file=${file%.tar.gz}.zip
    check "krew installs the archive of $platform" krew_install "$os" "$arch" "$file"
    check "krew has the plugin of $platform, version $tag" grep -qF "$tag" "$work/krew/receipts/spillway.yaml"
done
refused "krew refuses an archive with another checksum" "checksum" krew_install linux amd64 "$dist/kubectl-spillway-$tag-linux-arm64.tar.gz"
krew_install linux amd64 "$dist/kubectl-spillway-$tag-linux-amd64.tar.gz" > /dev/null 2>&1
check "the plugin that krew installed starts" bash -c "PATH='$work/krew/bin:$PATH' kubectl-spillway version | grep -qwF '$version'"
if command -v kubectl > /dev/null; then check "kubectl finds the plugin that krew installed" bash -c "PATH='$work/krew/bin:$PATH' kubectl spillway version | grep -qwF '$version'"; fi
for system in "macos arm" "macos intel" "linux arm" "linux intel"; do
    # shellcheck disable=SC2086  # two words
    check "the formula installs its archive: $system" ruby release/formula.rb "$dist/kubectl-spillway.rb" "$dist" $system
done

# --- image and chart ---------------------------------------------------------------------------------------------------
mkdir "$work/oci"; tar -xf "$dist/spillway-image-$version.oci.tar" -C "$work/oci"
regctl() { "$tools/regctl" "$@"; }
digest=$(regctl image digest "ocidir://$work/oci:$version")
check "the image is for amd64 and arm64 and for no other platform" equal "linux/amd64 linux/arm64" "$(jq -r '[.manifests[].platform | .os + "/" + .architecture] | join(" ")' "$work/oci/blobs/sha256/${digest#sha256:}")"
for arch in "${LINUX[@]}"; do
    manifest=$work/oci/blobs/sha256/$(regctl image digest --platform "linux/$arch" "ocidir://$work/oci:$version" | cut -d: -f2)
    layers=$(jq -r '.layers[].digest' "$manifest")
    mkdir -p "$work/image-$arch"
    check "the image of $arch has one layer" tar -xzf "$work/oci/blobs/sha256/${layers#sha256:}" -C "$work/image-$arch"
    check "the image of $arch has two programs and nothing else" content "$(printf '%s\n' bin/spillway spillway-agent)" "$work/image-$arch"
    check "the image of $arch has the operator that was built" cmp "$work/image-$arch/bin/spillway" "$(built "linux-$arch" spillway)"
    check "the image of $arch has the agent that was built" cmp "$work/image-$arch/spillway-agent" "$(built "linux-$arch" spillway-agent)"
    config=$work/oci/blobs/sha256/$(jq -r '.config.digest' "$manifest" | cut -d: -f2)
    check "the image of $arch runs as a user without rights" equal "$arch 65532:65532 /bin/spillway $version" \
        "$(jq -r '[.architecture, .config.User, .config.Entrypoint[0], .config.Labels["org.opencontainers.image.version"]] | join(" ")' "$config")"
done
helm() { HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm "$tools/helm" "$@"; }
check "the chart has the version" equal "$version $version" "$(helm show chart "$dist/spillway-$version.tgz" | sed -n 's/^version: //p; s/^appVersion: //p' | xargs)"
check "the chart passes helm lint" helm lint --strict "$dist/spillway-$version.tgz"
images() { helm template spillway "$dist/spillway-$version.tgz" --kube-version 1.31.0 --namespace spillway-system | grep -oE '(image: |value: )"?[^ "]*/spillway@[^ "]*' | sed -E 's/.*: "?//' | sort -u; }
check "all images of the chart are the image of this release" equal "$registry/spillway@$digest" "$(images)"

# --- the list of software and the notes --------------------------------------------------------------------------------
spdx=$(tests/venv.sh spdx release/requirements.txt)/bin
for name in spillway kubectl-spillway; do
    file=$dist/$name-$version.spdx.json
    check "${file##*/} is valid SPDX" "$spdx/pyspdxtools" --infile "$file"
    check "${file##*/} has no time of this build" equal "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" "$(jq -r '.creationInfo.created' "$file")"
    listed() { jq -r '.packages[] | .name + " " + .versionInfo' "$file" | sort -u; }
    linked() { sed -n 's/^\([a-z][A-Za-z0-9_-]* [0-9][^:]*\): .*/\1/p' "$stage/$1" | sort -u; }
    check "${file##*/} names all crates whose licences are in the archive" equal "" "$(comm -13 <(listed) <(linked "third-party-linux-amd64-$([ $name = spillway ] && echo spillway-pod || echo kubectl-spillway).txt"))"
done
check "the notes have the changes" grep -q '^### ' "$dist/NOTES.md"

sum_up
