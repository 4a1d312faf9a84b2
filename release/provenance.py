#!/usr/bin/env python3
"""Prints where files of a release come from: the predicate of SLSA provenance v1, or a whole in-toto statement about files.

    release/provenance.py VERSION COMMIT              the predicate
    release/provenance.py VERSION COMMIT FILE...      a statement with this predicate, about these files

Variables of the environment: REGISTRY and BASE_URL as in common.sh; BUILDER_ID: an address that names who ran this; SOURCE_URL: the
address of the repository. The text has no time and no name of a machine, so that the same build gives the same text.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def predicate(version, commit):
    toolchain = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    compiler = dict(line.split(": ", 1) for line in toolchain.splitlines() if ": " in line)
    source = os.environ.get("SOURCE_URL", "https://example.com/spillway")
    locks = ["Cargo.lock", *sorted(str(path) for path in pathlib.Path("release/tools").glob("*/go.sum"))]
    return {
        "buildDefinition": {
            "buildType": "https://spillway.dev/make-release/v1",
            "externalParameters": {
                "command": f"make release VERSION={version}",
                "version": version,
                "registry": os.environ.get("REGISTRY", ""),
                "baseUrl": os.environ.get("BASE_URL", ""),
            },
            "internalParameters": {"rustc": compiler["release"], "rustcCommit": compiler["commit-hash"]},
            "resolvedDependencies": [
                {"uri": f"git+{source}@v{version}", "digest": {"gitCommit": commit}},
                *({"name": lock, "digest": {"sha256": sha256(lock)}} for lock in locks),
            ],
        },
        # A build on a person's machine gives no level of SLSA. Only the builder of a forge can vouch for its own work.
        "runDetails": {"builder": {"id": os.environ.get("BUILDER_ID", "https://spillway.dev/dry-run")}},
    }


def main():
    version, commit, *files = sys.argv[1:]
    result = predicate(version, commit)
    if files:
        result = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": pathlib.Path(file).name, "digest": {"sha256": sha256(file)}} for file in files],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": result,
        }
    json.dump(result, sys.stdout, indent=2)
    print()


main()
