#!/usr/bin/env python3
"""Records a command's output with its times, and draws it as an animated SVG.

    e2e/recording/record.py --svg FILE [--log FILE] -- COMMAND...    run the command in a terminal, then draw
    e2e/recording/record.py --svg FILE --from LOG                    draw the log of an earlier run again

The command runs on a pseudo-terminal of COLUMNS x ROWS. Its log has one JSON array on each line: seconds since the start, text.
The drawing shows the output in its order and with its times, with five changes: pauses are shortened to PAUSE seconds, lines of
builds (NOISE) are left out, the checkout's path becomes ~/spillway, colours are left out, and of lines that are too long the
rows of tables are cut and others are broken between words. A failed command is not drawn.

The SVG needs no script. It has two CSS animations: one scrolls the lines, and one moves a cover over the lines to come. Without
animations, and for readers who prefer less motion, it shows the end. It needs Python 3 with its standard library only.
"""

import argparse
import codecs
import fcntl
import html
import json
import os
import pty
import re
import struct
import sys
import termios
import textwrap
import time

COLUMNS, ROWS = 104, 30
PAUSE = 2.0
# Seconds of the last screen before the animation starts again.
END = 6.0
# Lines that are printed within this time appear together.
FRAME = 0.05
MOST = 150_000
# cargo, make, the recipes that make prints, image archives, npm.
NOISE = re.compile(
    r"^\s*(Compiling|Checking|Finished|Fresh|Building|Downloading|Downloaded|Updating|Locking|Blocking|Adding|Running) "
    r"|^make(\[\d+\])?: |^(RUSTFLAGS=|e2e/images/build\.sh |(SPILLWAY_CLUSTER=\S+ )?e2e/cluster/cluster build|env -u )|^target/images/\S+\.tar +localhost/"
    r"|^(building|built) |^npm |^nothing to build: |DEPRECATION: The support for cgroup v1 |^Codex's image "
)
CELL, LINE, SIZE, EDGE = 7.8, 18, 13, 12


def run(command, log):
    """Runs the command on a terminal of its own; its exit code, and its output with times."""
    begun, said = time.monotonic(), []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm", COLUMNS=str(COLUMNS), LINES=str(ROWS), CARGO_TERM_PROGRESS_WHEN="never", NO_COLOR="1")
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error}", file=sys.stderr)
            os._exit(127)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        said.append((time.monotonic() - begun, decoder.decode(piece)))
        log.write(json.dumps(said[-1]) + "\n")
        log.flush()
        sys.stdout.write(said[-1][1])
        sys.stdout.flush()
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said


def lines_of(said):
    """(seconds, text) of each line when it was complete: the last text, if a line was overwritten."""
    lines, line, column = [], [], 0
    last = 0.0
    for at, text in said:
        last = at
        for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b.|[\s\S]", text):
            if piece == "\n":
                lines.append((at, "".join(line).rstrip()))
                line, column = [], 0
            elif piece == "\r":
                column = 0
            elif piece == "\b":
                column = max(column - 1, 0)
            elif piece == "\t":
                column = column // 8 * 8 + 8
            elif piece == "\x1b[K":
                del line[column:]
            elif piece[0] >= " ":
                line += " " * (column + 1 - len(line))
                line[column] = piece
                column += 1
    if line:
        lines.append((last, "".join(line).rstrip()))
    return lines


def fitted(text):
    """A line as rows of at most COLUMNS characters."""
    if len(text) <= COLUMNS:
        return [text]
    # kubectl puts three spaces or more between the columns of a table. The demo's times have them too: [   1s].
    if re.search(r"[^\s\[] {3}", text.strip()):
        return [text[:COLUMNS].rstrip()]
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.wrap(text, COLUMNS, subsequent_indent=indent, break_on_hyphens=False)


def shown(lines, title):
    """(seconds, text) of each row of the terminal, with pauses shortened and noise left out."""
    here = os.getcwd()
    rows, now, before = [(0.0, f"$ {title}")], 1.0, None
    for at, text in lines:
        if NOISE.search(text):
            continue
        if before is not None:
            now += min(max(at - before, 0), PAUSE)
        before = at
        text = text.replace(here, "~/spillway")
        if not text and not rows[-1][1]:
            continue
        rows += [(now, row) for row in fitted(text)]
    return rows


def draw(rows):
    frames = []
    for i, (at, _) in enumerate(rows):
        if frames and at - frames[-1][0] < FRAME:
            frames[-1] = (frames[-1][0], i + 1)
        else:
            frames.append((at, i + 1))
    whole = frames[-1][0] + END
    scroll = lambda count: -max(count - ROWS, 0) * LINE
    curtain = lambda count: min(count, ROWS) * LINE

    def keyframes(name, of):
        out, last = [], None
        for at, count in frames:
            value = of(count)
            if value != last:
                out.append(f"{at / whole * 100:.2f}%{{transform:translateY({value}px)}}")
            last = value
        return f"@keyframes {name}{{{''.join(out)}100%{{transform:translateY({last}px)}}}}"

    width, height = round(COLUMNS * CELL + 2 * EDGE), ROWS * LINE + 2 * EDGE
    bold = lambda line: ' class="c"' if line.startswith(("$ ", "== ")) else ""
    text = "".join(
        f'<text y="{i * LINE + SIZE}" textLength="{len(line) * CELL:.1f}"{bold(line)}>{html.escape(line, quote=False)}</text>'
        for i, (_, line) in enumerate(rows)
        if line
    )
    end = len(rows)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{html.escape(rows[0][1])}</title>
<style>
text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;fill:#1f2328;white-space:pre}}
.c{{font-weight:bold;fill:#0550ae}}
.b{{fill:#f6f8fa}}
.e{{stroke:#d0d7de}}
#l{{transform:translateY({scroll(end)}px);animation:l {whole:.1f}s step-end infinite}}
#r{{transform:translateY({curtain(end)}px);animation:r {whole:.1f}s step-end infinite}}
{keyframes("l", scroll)}
{keyframes("r", curtain)}
@media (prefers-reduced-motion:reduce){{#l,#r{{animation:none}}}}
@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.c{{fill:#79c0ff}}.b{{fill:#161b22}}.e{{stroke:#3d444d}}}}
</style>
<rect class="b e" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>
<svg x="{EDGE}" y="{EDGE}" width="{width - 2 * EDGE}" height="{ROWS * LINE}"><g id="l" xml:space="preserve">{text}</g><rect id="r" class="b" width="100%" height="{ROWS * LINE}"/></svg>
</svg>
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", required=True, help="SVG file to write")
    parser.add_argument("--log", default="target/recording.jsonl", help="file for the output and its times")
    parser.add_argument("--from", dest="source", help="draw this log, and run no command")
    parser.add_argument("--title", help="command line to show (default: the command)")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if bool(options.source) == bool(options.command):
        parser.error("a command, or --from")
    title = options.title or " ".join(options.command) or "make demo"
    if options.source:
        with open(options.source, encoding="utf-8") as log:
            said = [json.loads(line) for line in log]
    else:
        os.makedirs(os.path.dirname(options.log) or ".", exist_ok=True)
        with open(options.log, "w", encoding="utf-8") as log:
            code, said = run(options.command, log)
        if code != 0:
            sys.exit(f"{title}: exit code {code}; nothing is drawn. Its output: {options.log}")
    rows = shown(lines_of(said), title)
    svg = draw(rows)
    if len(svg.encode()) > MOST:
        sys.exit(f"the drawing would have {len(svg.encode())} bytes, more than {MOST}: leave more out (NOISE)")
    os.makedirs(os.path.dirname(options.svg) or ".", exist_ok=True)
    with open(options.svg, "w", encoding="utf-8") as file:
        file.write(svg)
    print(f"{options.svg}: {len(rows)} lines, {rows[-1][0]:.0f} s, {len(svg.encode()) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
