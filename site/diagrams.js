// Draws the ```mermaid blocks of a page. Mermaid itself is large, and most pages have no diagram: it is loaded where there is
// one. `make docs` puts it beside the pages; without it the blocks stay as text.
(() => {
    const diagrams = [...document.querySelectorAll("code.language-mermaid")].map((code) => {
        const drawing = document.createElement("div");
        drawing.className = "diagram";
        drawing.addEventListener("click", () => drawing.classList.toggle("natural"));
        return { source: code.textContent, block: code.closest("pre"), drawing };
    });
    if (diagrams.length === 0) return;

    const dark = () => ["coal", "navy", "ayu"].some((theme) => document.documentElement.classList.contains(theme));
    let drawn;
    async function draw() {
        if (drawn === dark()) return;
        drawn = dark();
        mermaid.initialize({ startOnLoad: false, theme: drawn ? "dark" : "default" });
        for (const [i, { source, block, drawing }] of diagrams.entries()) {
            drawing.innerHTML = (await mermaid.render(`diagram-${i}`, source)).svg;
            if (block.isConnected) block.replaceWith(drawing);
        }
    }
    const script = document.createElement("script");
    script.src = `${path_to_root}mermaid.min.js`;
    script.onload = () => {
        draw();
        new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["class"] });
    };
    document.head.append(script);
})();
