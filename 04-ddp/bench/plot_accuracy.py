#!/usr/bin/env python3
"""Draws pictures/accuracy.svg from bench/records/accuracy-*.json, which are written by

    mnrun --standalone --nproc-per-node 2 fashion_mnist --epochs 10 --min-accuracy 0 --json FILE

with --relu-on-output for the -relu ones, and --batch-size 32 --learning-rate 0.001 for the -small-steps ones.
"""
import json
import pathlib

CHAPTER = pathlib.Path(__file__).resolve().parent.parent
CURVES = [  # file, what is written at its end, colour, dashes
    ("linear", "linear output", "#0072b2", ""),
    ("relu", "ReLU on the output", "#d55e00", ""),
    ("linear-small-steps", "linear output", "#0072b2", "6 4"),
    ("relu-small-steps", "ReLU on the output", "#d55e00", "6 4"),
]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 460, 70, 190, 60, 60
LOWEST, HIGHEST = 77, 90  # %


def accuracies(name):
    lines = (CHAPTER / f"bench/records/accuracy-{name}.json").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [r["accuracy"] for r in records if "epoch" in r]


def main():
    curves = [(accuracies(name), label, colour, dashes) for name, label, colour, dashes in CURVES]
    epochs = max(len(values) for values, *_ in curves)

    def x(epoch):
        return LEFT + (epoch - 1) * (WIDTH - LEFT - RIGHT) / (epochs - 1)

    def y(percent):
        return TOP + (HIGHEST - percent) * (HEIGHT - TOP - BOTTOM) / (HIGHEST - LOWEST)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' role="img" font-family="sans-serif" font-size="14" fill="#222222">',
        "<title>Test accuracy after each epoch, with and without a ReLU on the output</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]

    def text(at_x, at_y, words, more=""):
        out.append(f'<text x="{at_x:.1f}" y="{at_y:.1f}"{more}>{words}</text>')

    text(LEFT, 30, "Fashion-MNIST, 2 ranks: images of the test set that are told right", ' font-weight="bold"')
    for percent in range(LOWEST + 1, HIGHEST + 1, 2):
        out.append(f'<path d="M{LEFT} {y(percent):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        text(LEFT - 8, y(percent) + 5, f"{percent} %", ' text-anchor="end" font-size="12"')
    for epoch in range(1, epochs + 1):
        text(x(epoch), HEIGHT - BOTTOM + 20, epoch, ' text-anchor="middle" font-size="12"')
    text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "epoch", ' text-anchor="middle"')

    # Labels of curves that end close together are moved apart.
    floor = 0
    for values, label, colour, dashes in sorted(curves, key=lambda curve: -curve[0][-1]):
        points = " ".join(f"{x(i + 1):.1f},{y(value):.1f}" for i, value in enumerate(values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"'
                   + (f' stroke-dasharray="{dashes}"' if dashes else "") + "/>")
        floor = max(y(values[-1]) + 5, floor + 18)
        text(x(len(values)) + 10, floor, f"{label} {values[-1]:.2f} %", f' fill="{colour}" font-size="12"')
    for i, (words, dashes) in enumerate([("batches of 128, rate 0.05", ""), ("batches of 32, rate 0.001", "6 4")]):
        at = HEIGHT - BOTTOM - 40 + 20 * i
        out.append(f'<path d="M{WIDTH - RIGHT - 230} {at - 5}h36" stroke="#555555" stroke-width="2"'
                   + (f' stroke-dasharray="{dashes}"' if dashes else "") + "/>")
        text(WIDTH - RIGHT - 185, at, words, ' font-size="12"')
    out.append("</svg>")
    (CHAPTER / "pictures/accuracy.svg").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
