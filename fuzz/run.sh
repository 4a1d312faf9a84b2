#!/usr/bin/env bash
# Builds all fuzz targets once and runs each for a while. A crash fails the run and prints the path of its input.
#
#   fuzz/run.sh                    every target, FUZZ_SECONDS each (60), FUZZ_JOBS at a time (2)
#   fuzz/run.sh calls holds        only these targets
#   fuzz/run.sh --reproduce TARGET FILE...   run inputs once and print their output
#   fuzz/run.sh --minimise         add found inputs to the corpus in git, as few and small files as keep the coverage
#
# The stable toolchain is enough: libFuzzer needs coverage, which is a flag of LLVM. It needs no sanitizer, because the code has
# no unsafe.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${FUZZ_SECONDS:-60}
jobs=${FUZZ_JOBS:-2}
# Limits of the corpus in git: bytes of a file, and files of a target.
corpus_bytes=${FUZZ_CORPUS_BYTES:-2048}
corpus_files=${FUZZ_CORPUS_FILES:-150}
host=$(rustc -vV | sed -n 's/^host: //p')
built=target/$host/release
found=target/found
artifacts=target/artifacts

targets() {
    sed -n '/^\[\[bin\]\]/{n;s/^name = "\(.*\)"$/\1/p;}' Cargo.toml
}

build() {
    # --target keeps the flags from build scripts and macros.
    RUSTFLAGS="${RUSTFLAGS:-} --cfg fuzzing -Cdebug-assertions=yes -Cpasses=sancov-module \
        -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares" \
        "${CARGO:-cargo}" build --quiet --release --locked --target "$host" --bins
}

# libFuzzer's numbers of a run: `number log name`.
number() {
    sed -n "s/^stat::$2: *//p" "$1" | tail -1
}

# Runs one target. New inputs go to a folder that is not in git. --minimise moves them into the corpus.
run() {
    local target=$1 log=$found/$1.log
    mkdir -p "$found/$target" "corpus/$target" "$artifacts/$target"
    if "$built/$target" "$found/$target" "corpus/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
        -max_len=4096 -artifact_prefix="$artifacts/$target/" -print_final_stats=1 -verbosity=1 >"$log" 2>&1; then
        echo "fuzz $target: $(number "$log" number_of_executed_units) inputs in $seconds s, $(number "$log" peak_rss_mb) MiB"
        return
    fi
    {
        grep -m1 -A3 'panicked at\|ERROR: libFuzzer' "$log" || tail -20 "$log"
        echo "fuzz $target: FAILED with the input fuzz/$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)"
        echo "reproduce it: fuzz/run.sh --reproduce $target fuzz/$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)"
    } >&2
    return 1
}

minimise() {
    local target
    for target in "$@"; do
        mkdir -p "$found/$target" "corpus/$target"
        local small=target/small/$target
        rm -rf "$small" && mkdir -p "$small"
        "$built/$target" -set_cover_merge=1 -max_len="$corpus_bytes" "$small" "corpus/$target" "$found/$target" >/dev/null 2>&1
        rm -rf "corpus/$target" && mkdir -p "corpus/$target"
        # If there are too many, keep some of each size.
        find "$small" -type f -size -"$((corpus_bytes / 1024 + 1))"k -printf '%s %p\n' | sort -n | cut -d' ' -f2- |
            awk -v most="$corpus_files" '{ file[NR] = $0 } END { for (n = 0; n < most && n < NR; n++) print file[NR <= most ? n + 1 : int(n * NR / most) + 1] }' |
            xargs -r cp -t "corpus/$target"
        echo "corpus/$target: $(find "corpus/$target" -type f | wc -l) files, $(cat "corpus/$target"/* | wc -c) bytes"
    done
}

case ${1:-} in
--reproduce)
    target=$2
    shift 2
    build
    # Paths are relative to the caller's folder, or to the root of the repository.
    for file in "$@"; do
        [ -e "$OLDPWD/$file" ] && file=$OLDPWD/$file || file=../$file
        "$built/$target" "$file"
    done
    ;;
--minimise)
    shift
    build
    if [ $# -gt 0 ]; then all=("$@"); else mapfile -t all < <(targets); fi
    minimise "${all[@]}"
    ;;
*)
    build
    if [ $# -gt 0 ]; then all=("$@"); else mapfile -t all < <(targets); fi
    export -f run number
    export seconds built found artifacts
    printf '%s\n' "${all[@]}" | xargs -P "$jobs" -I{} bash -c 'run "$1" || exit 1' run {}
    ;;
esac
