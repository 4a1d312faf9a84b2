#!/usr/bin/env python3
"""Prints the licences of all that is linked into a release's programs: the crates of each package for each target, the standard
library of Rust, and the C library of the static programs. It fails if a crate has no licence text and names none.

    release/licences.py TARGET PACKAGE... > THIRD-PARTY.txt
"""

import json
import pathlib
import re
import subprocess
import sys

LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)


def linked_crates(target, packages):
    """The crates that the packages link for this target, without those that only build scripts and tests use."""
    metadata = json.loads(subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={target}"], check=True, capture_output=True).stdout)
    crates = {crate["id"]: crate for crate in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    ours = [id for id, crate in crates.items() if crate["name"] in packages and crate["source"] is None]
    if len(ours) != len(packages):
        sys.exit(f"licences: not all of {packages} are packages of the workspace")
    found, queue = set(ours), ours
    while queue:
        for dependency in nodes[queue.pop()]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]) and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                queue.append(dependency["pkg"])
    # Macros run in the compiler and are not linked.
    libraries = [crates[id] for id in found if not any("proc-macro" in target["kind"] for target in crates[id]["targets"])]
    return sorted((crate for crate in libraries if crate["source"]), key=lambda crate: (crate["name"], crate["version"]))


def licence_texts(crate):
    folder = pathlib.Path(crate["manifest_path"]).parent
    files = [file for file in folder.iterdir() if file.is_file() and LICENCE_FILE.match(file.name)]
    if crate["license_file"] and (folder / crate["license_file"]).resolve() not in [file.resolve() for file in files]:
        files.append(folder / crate["license_file"])
    return [file.read_text(encoding="utf-8", errors="replace").strip() for file in sorted(files)]


def main():
    target, packages = sys.argv[1], sys.argv[2:]
    texts = {}
    print(f"Software of others in {', '.join(packages)} for {target}\n")
    for crate in linked_crates(target, packages):
        found = licence_texts(crate)
        if not found and not crate["license"]:
            sys.exit(f"licences: {crate['name']} {crate['version']} has no licence")
        print(f"{crate['name']} {crate['version']}: {crate['license'] or 'see its text'}{'' if found else ' (its package has no text)'}")
        for text in found:
            texts.setdefault(text, []).append(f"{crate['name']} {crate['version']}")
    print("The standard library of Rust: MIT OR Apache-2.0")
    if "linux-gnu" in target:
        print("The GNU C library, linked statically: LGPL-2.1-or-later. Its source is Debian's package glibc. The source of these programs,")
        print("with the commands that link them again, is the repository of Spillway.")
        lgpl = pathlib.Path("/usr/share/common-licenses/LGPL-2.1").read_text(encoding="utf-8").strip()
        texts.setdefault(lgpl, []).append("the GNU C library")
    if "windows-gnu" in target:
        print("The runtime of MinGW-w64: ZPL-2.1; that of GCC: GPL-3.0-or-later WITH GCC-exception-3.1")
    for text, crates in texts.items():
        print(f"\n{'=' * 100}\n{', '.join(crates)}\n{'-' * 100}\n{text}")


main()
