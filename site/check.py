#!/usr/bin/env python3
"""Fails if a link of the built site leads nowhere, or if a page needs the network to be seen.

    site/check.py [FOLDER]       target/site

Links out of the site are not followed. Of the Rust documentation, only that what is linked exists: rustdoc checks its own.
Python 3, its standard library only.
"""

import os
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

RUST = "rust"


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.parts = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(v for k, v in attributes.items() if v and (k == "id" or k == "name" and tag == "a"))
        for key in ("href", "src"):
            if attributes.get(key) is not None:
                # What a browser loads by itself to show the page, and what a reader may follow.
                (self.links if tag in ("a", "area") else self.parts).append(attributes[key])


def main():
    site = os.path.normpath(sys.argv[1] if len(sys.argv) > 1 else "target/site")
    pages, wrong, links = {}, [], 0
    for folder, folders, files in os.walk(site):
        if folder == site and RUST in folders:
            folders.remove(RUST)
        for name in files:
            path = os.path.join(folder, name)
            if name.endswith(".html"):
                with open(path, encoding="utf-8") as file:
                    pages[path] = Page(file.read())
            elif name.endswith(".css"):
                with open(path, encoding="utf-8") as file:
                    for url in re.findall(r"(?:url\(['\"]?|@import ['\"])(https?:[^'\")]+)", file.read()):
                        wrong.append(f"{os.path.relpath(path, site)}: loads {url} from the network")
    for path, page in sorted(pages.items()):
        here = os.path.relpath(path, site)
        for link in page.parts:
            if urlsplit(link).netloc:
                wrong.append(f"{here}: loads {link} from the network")
        for link in page.links + page.parts:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            links += 1
            to = unquote(url.path)
            target = os.path.normpath(os.path.join(site if to.startswith("/") else os.path.dirname(path), to.lstrip("/"))) if to else path
            if os.path.isdir(target):
                target = os.path.join(target, "index.html")
            if not os.path.isfile(target):
                wrong.append(f"{here}: {link} leads to no file")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].ids:
                wrong.append(f"{here}: {link} leads to no heading of that page")
    if any('class="language-mermaid' in open(path, encoding="utf-8").read() for path in pages):
        if not os.path.isfile(os.path.join(site, "mermaid.min.js")):
            wrong.append("mermaid.min.js is missing: pages have diagrams")
    if not links:
        wrong.append(f"{site} has no links")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(pages)} pages, {links} links, {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
