// Where code in a text may break. Short names do not break at all, for example at the hyphens of --force. Long names in tables
// break after a dot, a slash or another sign between words: otherwise a table of them would be wider than the page, or names
// would break between any two letters.
for (const code of document.querySelectorAll("main :not(pre) > code")) {
    const text = code.textContent;
    const cell = code.closest("td");
    if (code.childElementCount > 0) continue;
    if (text.length <= (!cell ? 24 : cell.cellIndex === 0 ? 26 : 15)) {
        if (!/\s/.test(text)) code.style.whiteSpace = "nowrap";
        continue;
    }
    if (!cell) continue;
    // Parts of eight characters or more, so that narrow columns do not become lists of syllables.
    const parts = text.match(/.{8,}?[._/:,?&=](?=\w)|.+$/gs);
    code.replaceChildren(...parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part])));
    // Names of tests (FILE::TEST) stand below each other.
    const before = code.previousSibling;
    if (text.includes("::") && before?.data === " " && code.previousElementSibling?.localName === "code") {
        before.replaceWith(document.createElement("br"));
    }
}
