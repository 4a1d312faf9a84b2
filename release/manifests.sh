#!/usr/bin/env bash
# Writes the manifest of Krew and the formula of Homebrew from their templates, with the checksums of the archives.
#
#   release/manifests.sh VERSION      after archives.sh. BASE_URL: where people download the archives
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# fill TEMPLATE : the template with its values
fill() {
    local text platform name suffix
    text=$(grep -v '^#' "$1")
    text=${text//'{{ .TagName }}'/$tag}
    text=${text//'{{ .Version }}'/$version}
    text=${text//'{{ .BaseUrl }}'/$base_url}
    for platform in "${PLUGIN_PLATFORMS[@]}"; do
        suffix=tar.gz
        [[ $platform != windows-* ]] || suffix=zip
        name=${platform^^}
        text=${text//"{{ .SHA_${name//-/_} }}"/$(sha256 "$dist/kubectl-spillway-$tag-$platform.$suffix")}
    done
    ! grep -nF '{{ ' <<<"$text" || die "$1 has a value that this script does not know"
    printf '%s\n' "$text"
}

fill .krew.yaml > "$dist/spillway.krew.yaml"
fill release/kubectl-spillway.rb.in > "$dist/kubectl-spillway.rb"
say "wrote the manifest of Krew and the formula of Homebrew"
