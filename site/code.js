// Lets long names in the code of tables break after a dot, a slash or another sign between words: a table of them would be wider
// than the page, or names would break between any two letters. Short names do not break.
for (const code of document.querySelectorAll("main td code")) {
    const text = code.textContent;
    if (code.childElementCount > 0) continue;
    if (text.length < 20) {
        if (!/\s/.test(text)) code.style.whiteSpace = "nowrap";
        continue;
    }
    const parts = text.split(/(?<=[._/:,?&=](?=\w))/);
    code.replaceChildren(...parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part])));
}
