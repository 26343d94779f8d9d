#!/usr/bin/env python3
"""Draws the last step of each trace that a program of this chapter wrote with --trace: one below the other, on one scale.

usage: bench/plot_timeline.py PICTURE.svg CAPTION=TRACE.json ...
"""
import json
import sys
from html import escape

WIDTH, LEFT, RIGHT = 960, 76, 16
BAR, GAP = 20, 4
COLOURS = {"forward": "#4477aa", "backward": "#66ccee", "exposed communication": "#dddddd", "update": "#aa3377"}
REDUCTIONS = ("#228833", "#99bb55")


def last_step(path):
    """{rank: {track: [(name, begin, end), ...]}} of the last step, in ms, and its extent."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ranks = {}
    for e in events:
        if e["ph"] == "X":
            rank = ranks.setdefault(e["pid"], {"compute": [], "communication": []})
            rank[tracks[e["pid"], e["tid"]]].append((e["name"], e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3))
    for rank in ranks.values():
        _, begin, end = [e for e in rank["compute"] if e[0].startswith("step ")][-1]
        for track in rank:
            rank[track] = [e for e in rank[track] if begin <= e[1] < end and not e[0].startswith("step ")]
    bars = [e for rank in ranks.values() for track in rank.values() for e in track]
    return ranks, min(b for _, b, _ in bars), max(e for _, _, e in bars)


def main():
    picture, *arguments = sys.argv[1:]
    traces = [(a.split("=", 1)[0], *last_step(a.split("=", 1)[1])) for a in arguments]
    longest = max(end - begin for _, _, begin, end in traces)
    scale = (WIDTH - LEFT - RIGHT) / longest
    out, y = [], 8

    def text(x, y, what, **attributes):
        more = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in attributes.items())
        out.append(f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(what)}</text>')

    x = LEFT
    for name, colour in [*COLOURS.items(), ("reductions of buckets", REDUCTIONS[0])]:
        out.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        text(x + 17, y + 10.5, name)
        x += 40 + 6.6 * len(name)
    y += 30
    for caption, ranks, first, last in traces:
        text(LEFT, y + 12, f"{caption}: {last - first:.0f} ms", font_weight="bold")
        y += 20
        for number in sorted(ranks):
            text(8, y + BAR + GAP / 2 + 4, f"rank {number}")
            for track in ("compute", "communication"):
                for i, (name, begin, end) in enumerate(ranks[number][track]):
                    colour = COLOURS[name] if track == "compute" else REDUCTIONS[i % 2]
                    x, width = LEFT + (begin - first) * scale, max((end - begin) * scale, 0.5)
                    out.append(
                        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}">'
                        f"<title>{escape(name)}: {end - begin:.1f} ms</title></rect>"
                    )
                    label = name.split()[-1] if track == "communication" else ""
                    if label.isdigit() and width > 14:
                        text(x + width / 2, y + 14, label, text_anchor="middle", fill="white")
                y += BAR + GAP
            y += 2 * GAP
        y += 6
    step = next(s for s in (10**e * m for e in range(-3, 7) for m in (1, 2, 5)) if longest / s <= 10)
    for i in range(int(longest / step) + 1):
        x = LEFT + i * step * scale
        out.append(f'<path d="M{x:.1f} 34V{y - 4}" stroke="#888" stroke-dasharray="1 3"/>')
        text(x, y + 9, f"{i * step:g}" + (" ms" if i == 0 else ""), text_anchor="middle")
    y += 18
    with open(picture, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" '
            f'font-size="12">\n<rect width="{WIDTH}" height="{y}" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n"
        )


if __name__ == "__main__":
    main()
