"""Draws the modules of the library in layers, from the imports in its source.

    python docs/layers.py docs/layers.svg

A part is a module or a folder of `jaxminimax`. It stands one layer above the highest part that it
imports; parts that import each other share a layer. An arrow is an import. One that other arrows
imply (a to c, where a to b to c) is left out of the picture.
"""

import ast
import pathlib
import sys

import pictures
from matplotlib.figure import Figure

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "jaxminimax"


def part_of(path: pathlib.Path) -> str:
    """The part that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports() -> dict[str, set[str]]:
    """The other parts that each part imports."""
    files = sorted(PACKAGE.rglob("*.py"))
    parts: dict[str, set[str]] = {part_of(path): set() for path in files}
    for name in ("__init__", "__main__", "face", "tables", "estimators"):  # names of other parts
        del parts[name]
    for path in files:
        if part_of(path) in parts:
            names = _imported(path, ["jaxminimax", *path.relative_to(PACKAGE).parts[:-1]])
            parts[part_of(path)] |= {n for n in names if n in parts} - {part_of(path)}
    return parts


def _imported(path: pathlib.Path, folder: list[str]) -> set[str]:
    """The second word of every name below `jaxminimax` that a file imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            module = [*base, *([node.module] if node.module else [])]
            names += [".".join([*module, alias.name]) for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("jaxminimax.")}


def reached(arrows: dict[str, set[str]], start: str) -> set[str]:
    """All parts that arrows lead to from `start`."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for other in arrows[ahead.pop()] - seen:
            seen.add(other)
            ahead.append(other)
    return seen


def layers(arrows: dict[str, set[str]]) -> dict[str, int]:
    """The layer of each part: 0 for parts that import no other."""
    below = {part: reached(arrows, part) for part in arrows}
    level = dict.fromkeys(arrows, 0)
    for _ in arrows:  # the longest chain has no more steps than there are parts
        for part in arrows:
            level[part] = max([level[part], *(level[b] + (part not in below[b])
                                              for b in below[part])])
    return level


def needed(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no others imply."""
    return {part: {b for b in into if not any(b in reached(arrows, c) and part not in
                                              reached(arrows, c) for c in into - {b})}
            for part, into in arrows.items()}


def draw(figure: Figure) -> None:
    """The parts of the package in layers, and which imports which."""
    arrows = imports()
    level = layers(arrows)
    rows = [sorted(p for p in arrows if level[p] == k) for k in range(max(level.values()) + 1)]
    wide = max(map(len, rows))
    # single parts stand to the right and rows of many in a zigzag, so that arrows pass parts by
    place = {part: (0.7 * wide if len(row) == 1 else
                    (k + 1) * wide / (len(row) + 1) - 0.3 * (-1) ** layer, layer)
             for layer, row in enumerate(rows) for k, part in enumerate(row)}
    figure.set_size_inches(5.6, 0.75 * len(rows) + 0.3)
    axes = figure.add_subplot(xlim=(0, wide), ylim=(-0.5, len(rows) - 0.5), xticks=[],
                              ylabel="layer", yticks=range(len(rows)))
    for part, into in needed(arrows).items():
        for other in sorted(into):
            (x, y), (u, v) = place[part], place[other]
            axes.annotate("", xy=(u, v + 0.2), xytext=(x, y - 0.2), arrowprops={
                "arrowstyle": "->", "color": pictures.INK, "linewidth": 0.8})
    for part, (x, y) in place.items():
        axes.text(x, y, part, ha="center", va="center", fontsize=11, bbox={
            "boxstyle": "round", "facecolor": pictures.SOFT, "edgecolor": pictures.INK})
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(pictures.drawn(draw), encoding="utf-8")
