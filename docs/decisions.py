"""Draws which algorithm to take, as questions about the problem.

    python docs/decisions.py docs/choosing.svg

The first question whose answer is yes decides. Below the last one stands what to take otherwise.
"""

import sys

QUESTIONS = {
    "Do the people in the data\ntrust no server?": "sgda, one pass, batch=1",
    "Is every record read once,\nin a fixed public order?": "ftrl",
    "Are groups public, and\ndoes the worst one count?":
        "balanced_groups\nwith a rate: group_sgd, active_groups\none read: phased_erm, group_oco",
    "Must predictions not depend\non a private group?": "sgda on fermi or parity",
    "Do you need a guarantee\non the strong gap?": "recursive, recursive_sgda",
    "Is the loss strongly convex-\nconcave, and n small?": "gda",
    "Is the operator monotone, and\nits Lipschitz constant known?":
        "optimistic\nno clipping: proximal",
    "Is the operator no gradient,\nor does it turn?": "extragradient",
}
OTHERWISE = "sgda with Poisson samples"


def draw(target: str) -> None:
    """Writes the picture; the suffix of `target` sets its format."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "decisions"  # the same file from the same source
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.95 * len(QUESTIONS) + 0.8), layout="constrained")
    axes = figure.subplots()
    arrow = {"arrowstyle": "->", "color": "0.3", "lw": 0.8}
    box = {"boxstyle": "round", "facecolor": "w", "edgecolor": "0.3"}
    for k, (question, algorithm) in enumerate(QUESTIONS.items()):
        axes.annotate("", xy=(0, -k - 0.72), xytext=(0, -k - 0.28), arrowprops=arrow)
        axes.annotate("", xy=(1.27, -k), xytext=(0.72, -k), arrowprops=arrow)
        axes.text(0.05, -k - 0.5, "no", va="center", fontsize=9)
        axes.text(0.98, -k + 0.06, "yes", ha="center", va="bottom", fontsize=9)
        axes.text(0, -k, question, ha="center", va="center", fontsize=10, bbox=box)
        axes.text(1.3, -k, algorithm, va="center", fontsize=10, bbox=box | {"facecolor": "0.93"})
    axes.text(0, -len(QUESTIONS), OTHERWISE, ha="center", va="center", fontsize=10,
              bbox=box | {"facecolor": "0.93"})
    axes.set(xlim=(-0.75, 2.6), ylim=(-len(QUESTIONS) - 0.4, 0.4))
    axes.axis("off")
    figure.savefig(target, metadata={"Date": None} if target.endswith(".svg") else None)


if __name__ == "__main__":
    draw(sys.argv[1])
