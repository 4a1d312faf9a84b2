#!/usr/bin/env python3
"""A preprocessor of mdBook: the site's pages from outside docs/, and links between the repository's files.

Sources link as repository hosts need it: from a file to a file, docs or not. In the site,
- README.md of the repository is the front page; the other pages of EXTRA follow at the end;
- a link to a page of the site leads to that page, wherever both lie in the repository;
- a link to another file of the repository leads to `output.html.git-repository-url` of book.toml where that is set. Where it is
  not set, there is nothing to link: the words stay, and name the path.
With SITE_ONLY=1 in the environment the page that lists the crates' Rust documentation is left out.

mdBook calls it (book.toml), with the book as JSON on standard input. Python 3, its standard library only.
"""

import json
import os
import posixpath
import re
import subprocess
import sys

FRONT = ("Spillway", "README.md")
EXTRA = [
    ("Contributing", "CONTRIBUTING.md"),
    ("The local cluster", "e2e/cluster/README.md"),
    ("Fuzzing", "fuzz/README.md"),
    ("Security", "SECURITY.md"),
    ("Changelog", "CHANGELOG.md"),
]
# Where `make docs` puts what `cargo doc` wrote.
RUST = "rust"


def site_path(path):
    """The page of the site, as Markdown, that a file of the repository becomes."""
    path = path.removeprefix("docs/")
    folder, name = posixpath.split(path)
    return posixpath.join(folder, "index.md") if name == "README.md" else path


class Links:
    def __init__(self, root, pages, repository):
        self.root, self.pages, self.repository = root, pages, repository

    def lead(self, page, target):
        """Where a link of a page leads in the site; None where it cannot lead anywhere. Second: the path in the repository."""
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return target, None
        file, hash_, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), file))
        readme = posixpath.join(path, "README.md")
        if path not in self.pages and readme in self.pages:
            path = readme
        on_disk = os.path.join(self.root, path)
        if path in self.pages or path.startswith("docs/") and os.path.isfile(on_disk):
            here = posixpath.dirname(site_path(page)) or "."
            return posixpath.relpath(site_path(path), here) + hash_ + anchor, path
        if not os.path.exists(on_disk):
            sys.exit(f"{page}: a link leads to {path}, which does not exist")
        if self.repository:
            kind = "tree" if os.path.isdir(on_disk) else "blob"
            return f"{self.repository.rstrip('/')}/{kind}/main/{path}{hash_}{anchor}", path
        return None, path

    def rewrite(self, page, text):
        """A page's Markdown with its links leading where they lead in the site."""
        parts = re.split(r"(^ *```.*?^ *```[^\n]*$)", text, flags=re.M | re.S)
        return "".join(part if i % 2 else self._prose(page, part) for i, part in enumerate(parts))

    def _prose(self, page, text):
        code = [m.span() for m in re.finditer(r"`[^`]*`", text)]
        in_code = lambda at: any(start <= at < end for start, end in code)
        out, done = [], 0
        for m in re.finditer(r'\]\(([^()\s]+)\)|\b(?:src|href)="([^"]+)"', text):
            if in_code(m.start()):
                continue
            link = 1 if m[1] else 2
            to, path = self.lead(page, m[link])
            if to is not None or link == 2:
                out += [text[done : m.start(link)], to or m[link]]
                done = m.end(link)
                continue
            start, depth = m.start() - 1, 1
            while True:
                if not in_code(start):
                    depth += {"]": 1, "[": -1}.get(text[start], 0)
                if depth == 0:
                    break
                start -= 1
            words = text[start + 1 : m.start()]
            named = words.strip("`") in (m[link], path) or path.endswith("/" + words.strip("`"))
            out += [text[done:start], f"`{path}`" if named else f"{words} (`{path}`)"]
            done = m.end()
        return "".join(out) + text[done:]


def chapter(name, path, content):
    return {
        "Chapter": {
            "name": name,
            "content": content,
            "number": None,
            "sub_items": [],
            "path": path,
            "source_path": None,
            "parent_names": [],
        }
    }


def crates(root):
    """A page with a link to each crate's Rust documentation."""
    command = ["cargo", "metadata", "--no-deps", "--format-version=1", "--offline", "--locked"]
    packages = json.loads(subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    lines = ["# The crates", "", "What `cargo doc` makes of the sources.", "", "| crate | what it is |", "|---|---|"]
    for package in sorted(packages, key=lambda package: package["name"]):
        targets = [t for t in package["targets"] if "lib" in t["kind"]] or [t for t in package["targets"] if "bin" in t["kind"]]
        for target in targets:
            name = target["name"].replace("-", "_")
            lines.append(f"| [`{package['name']}`]({RUST}/{name}/index.html) | {package['description'] or ''} |")
    return "\n".join(lines) + "\n"


def chapters(items):
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    context, book = json.load(sys.stdin)
    root = context["root"]
    items = book["items"]
    source = {c["path"]: posixpath.join("docs", c["source_path"]) for c in chapters(items) if c["path"]}
    extra = [FRONT, *EXTRA]
    pages = {*source.values(), *(path for _, path in extra)}
    links = Links(root, pages, context["config"].get("output", {}).get("html", {}).get("git-repository-url"))

    for page in chapters(items):
        if page["path"]:
            page["content"] = links.rewrite(source[page["path"]], page["content"])

    def added(name, path):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            return chapter(name, site_path(path), links.rewrite(path, file.read()))

    items.insert(0, added(*FRONT))
    items.append({"PartTitle": "Project"})
    items += [added(name, path) for name, path in EXTRA]
    if os.environ.get("SITE_ONLY") != "1":
        items.append(chapter("The crates", "crates.md", crates(root)))
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
