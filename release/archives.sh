#!/usr/bin/env bash
# Makes the archives of the programs: one of everything for each architecture of Linux, and one of the plugin for each platform, with
# the content that .krew.yaml says. The same commit gives the same bytes.
#
#   release/archives.sh VERSION      after binaries.sh and pages.sh
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need zip zip
mkdir -p "$dist"
trees=$stage/trees
rm -rf "$trees"

# third_party PLATFORM PACKAGE... : the licences, once for each platform and list
third_party() {
    local file=$stage/third-party-$1-${*: -1}.txt platform=$1; shift
    release/licences.py "$(rust_target "$platform")" "$@" > "$file"
    echo "$file"
}

# install_pages FOLDER PROGRAM... : man pages and completion scripts below FOLDER/share
install_pages() {
    local share=$1/share program page kind; shift
    for program; do
        for page in "$stage/pages/man1/$program.1" "$stage/pages/man1/$program"-*.1; do
            # The pages of spillway-agent are not pages of spillway.
            [[ $program == spillway && $page == */spillway-agent* ]] || { mkdir -p "$share/man/man1"; gzip -9n < "$page" > "$share/man/man1/${page##*/}.gz"; }
        done
        for kind in bash:bash-completion/completions zsh:zsh/site-functions fish:fish/vendor_completions.d; do
            for page in "$stage/pages/${kind%%:*}"/{"$program","_$program","$program.fish"}; do
                [ ! -e "$page" ] || install -D -m 644 "$page" "$share/${kind#*:}/${page##*/}"
            done
        done
    done
}

for arch in "${LINUX[@]}"; do
    platform=linux-$arch
    # Two trees in the form of a prefix (bin, lib, share): packages.sh uses them too.
    plugin=$trees/plugin-$arch all=$trees/all-$arch
    install -D -m 755 "$(built "$platform" kubectl-spillway)" "$plugin/bin/kubectl-spillway"
    install_pages "$plugin" kubectl-spillway
    install -D -m 644 LICENSE "$plugin/share/doc/kubectl-spillway/LICENSE"
    install -m 644 "$(third_party "$platform" kubectl-spillway)" "$plugin/share/doc/kubectl-spillway/THIRD-PARTY.txt"

    for program in spillway spillway-agent; do install -D -m 755 "$(built "$platform" $program)" "$all/bin/$program"; done
    install -m 755 config/laptop/spillway-wrap "$all/bin/spillway-wrap"
    install -D -m 644 config/bridge/spillway-bridge.service "$all/lib/systemd/user/spillway-bridge.service"
    install_pages "$all" spillway spillway-agent
    install -D -m 644 -t "$all/share/doc/spillway" LICENSE README.md CHANGELOG.md
    install -m 644 "$(third_party "$platform" spillway spillway-pod)" "$all/share/doc/spillway/THIRD-PARTY.txt"

    name=spillway-$version-$platform
    rm -rf "${trees:?}/$name"; mkdir -p "$trees/$name"
    cp -a "$all/." "$plugin/." "$trees/$name/"
    reproducible_tar -C "$trees" -cf - "$name" | gzip -9n > "$dist/$name.tar.gz"
done

for platform in "${PLUGIN_PLATFORMS[@]}"; do
    name=kubectl-spillway-$tag-$platform program=$(built "$platform" kubectl-spillway)
    folder=$trees/$name
    install -D -m 755 "$program" "$folder/${program##*/}"
    install -m 644 LICENSE "$folder/LICENSE"
    install -m 644 "$(third_party "$platform" kubectl-spillway)" "$folder/THIRD-PARTY.txt"
    if [[ $platform == windows-* ]]; then
        find "$folder" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
        rm -f "$dist/$name.zip"
        (cd "$folder" && find . -type f -printf '%P\n' | sort | zip -q -X -9 -@ - ) > "$dist/$name.zip"
    else
        (cd "$folder" && find . -type f -printf '%P\n' | sort) | reproducible_tar -C "$folder" -T - -cf - | gzip -9n > "$dist/$name.tar.gz"
    fi
done
say "wrote $(find "$dist" -name '*.tar.gz' -o -name '*.zip' | wc -l) archives"
