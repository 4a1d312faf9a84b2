#!/usr/bin/env bash
# Writes the man pages and the completion scripts of the programs for Linux, from the programs themselves.
#
#   release/pages.sh VERSION      Needs help2man. Writes target/release-VERSION-stage/pages/{man1,bash,zsh,fish}
# shellcheck source=release/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need help2man help2man

out=$stage/pages
rm -rf "$out"
mkdir -p "$out"/{man1,bash,zsh,fish}
# The text of options must not depend on the terminal or on variables of this machine.
plain=(env -i "PATH=$(realpath "$(dirname "$(built linux-amd64 spillway)")"):$PATH" LC_ALL=C TZ=UTC COLUMNS=100 "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")

# commands PROGRAM [COMMAND] : the names of its commands that are not hidden
commands() { "${plain[@]}" "$@" --help | awk '/^Commands:/ { list = 1; next } /^[^ ]/ { list = 0 } list && /^  [a-z]/ && $1 != "help" { print $1 }'; }
# page NAME DESCRIPTION PROGRAM [COMMAND...]
page() {
    local name=$1 about=$2; shift 2
    "${plain[@]}" help2man --no-info --no-discard-stderr --section 1 --manual "Spillway" --source "Spillway $version" \
        --version-string "$version" --name "$about" --output "$out/man1/$name.1" "$*"
    # help2man takes the command, with its space, for the name of the page.
    sed -i -e "s/^$* \\\\-/$name \\\\-/" -e "s/^\.TH .*/.TH ${name^^} \"1\" \"$(date -u -d "@$SOURCE_DATE_EPOCH" '+%B %Y')\" \"Spillway $version\" \"Spillway\"/" "$out/man1/$name.1"
}
# The first line of a help text is its description.
about() { "${plain[@]}" "$@" --help | sed -n '1{s/\.$//;p}'; }

for program in spillway spillway-agent kubectl-spillway; do
    page "$program" "$(about "$program")" "$program"
    mapfile -t names < <(commands "$program")
    [ ${#names[@]} -gt 3 ] || die "$program has too few commands: ${names[*]}"
    for command in "${names[@]}"; do page "$program-$command" "$(about "$program" "$command")" "$program" "$command"; done
done
for program in spillway kubectl-spillway; do
    "${plain[@]}" "$program" completion bash > "$out/bash/$program"
    "${plain[@]}" "$program" completion zsh > "$out/zsh/_$program"
    "${plain[@]}" "$program" completion fish > "$out/fish/$program.fish"
done
find "$out" -type f -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
say "wrote $(find "$out/man1" -type f | wc -l) man pages and $(find "$out"/{bash,zsh,fish} -type f | wc -l) completion scripts"
