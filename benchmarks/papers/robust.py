"""`python -m benchmarks.papers.robust`: what the noise of DP Double-Spider's programs gives.

Xu, Ding, Ma, Xie, Tao, Slaitane and Wang, "Differentially private non-convex distributionally
robust optimization" (2026, arXiv:2602.16155), train ResNet20 on CIFAR10-ST: 100 images of each of
five classes and 5,000 of each of the others, tested on all classes alike. The figures are those of
`results.md` in a public repository with the paper's algorithms (slaicha/DPDRO), means of five runs;
its programs were read, the paper's tables were not at hand. Nothing is trained here: the algorithm
is in `benchmarks.examples.methods`, on Fashion-MNIST with the same sizes of classes.

    python -m benchmarks.papers.robust --json
"""

import math
import sys
from typing import Any

from benchmarks.common import report
from benchmarks.papers import page, truth

N = 5 * 100 + 5 * 5000
DELTA = N**-1.1  # theirs
# mean and standard deviation of the accuracy in per cent, by method and claimed epsilon
PUBLISHED = {
    "Double-Spider": {0.1: (55.85, 1.26), 1.0: (56.32, 0.48), 3.0: (56.55, 0.96),
                      5.0: (56.38, 0.55), 8.0: (55.79, 1.02), 10.0: (56.92, 0.86)},
    "Recursive-Spider": {0.1: (55.42, 1.69), 1.0: (54.48, 1.83), 3.0: (54.97, 2.01),
                         5.0: (55.18, 2.18), 8.0: (55.74, 1.34), 10.0: (56.89, 1.18)},
    "DP-SGDA": {5.0: (53.59, 1.99), 10.0: (54.34, 0.99)},
    "PrivateDiff": {5.0: (53.34, 1.70), 10.0: (54.17, 0.96)},
}
PARAMETERS = 272_474  # of their ResNet20


def spider_parts(epsilon: float) -> tuple[truth.Parts, float]:
    """Their private stage as if records were clipped to 1, and the deviation of x's anchors.

    The constants are the defaults of `dro1_new/algorithm.py`: G = L = H = C1 = .. = C4 = 1,
    M = 1/2, lambda = 0.1, 100 rounds. Releases of eta and of x at anchors, then in between.
    """
    total, d0, d1, d2 = 100, 258.0, 8.0, 25.0
    l0, l1, l2 = 6.0, 1.0, 5.0
    log = math.log(1 / DELTA)
    q = math.ceil((N * epsilon / math.sqrt(PARAMETERS * log))**(2 / 3))
    c0, c2 = max(32 * l2, 8 * l0), 1.0
    n1 = math.ceil(6 * d2 * c0 * c2 / epsilon**2)
    c1 = 4 + 40 * l1**2 * d2 / (n1 * l0**2) + 16 * l1**2 * l2 / (5 * d1 * l0**3)
    n2 = math.ceil(max(20 * q * d1 * l2 / l0, 20 * q * c2 * l2,
                       12 * q * l1**2 * c0 * c2 / l0**2, q))
    n3 = math.ceil(max(200 * d1 * l2 / l0, 3 * c0 * (d0 + 4 * d1 * d2) * N / (2 * l0)))
    n4 = math.ceil(max(5 * q * l2 / l0, 6 * q * c1 * c0 / l0))
    anchor = math.sqrt(total * log) / (N * math.sqrt(q) * epsilon)
    between = math.sqrt(log) / (n2 * epsilon)
    other = math.sqrt(log) / epsilon * max(1 / n4, math.sqrt(total) / (N * math.sqrt(q)))
    anchors = -(-total // q)
    parts = [(min(size, N) * deviation, min(size, N) / N, times) for size, deviation, times in (
        (n1, anchor, anchors), (n3, anchor, anchors), (n2, between, total - anchors),
        (n4, other, total - anchors))]
    return parts, anchor


def sgda_parts(epsilon: float) -> tuple[truth.Parts, float]:
    """Their DP-SGDA on one tensor as if records were clipped to 1, and its noise's deviation."""
    times = 30 * -(-N // 128)
    deviation = math.sqrt(times * math.log(1 / DELTA)) / (N * epsilon)
    return [(deviation * 128, 128 / N, times)], deviation


def noise() -> list[dict[str, Any]]:
    """What the published noise gives, by reading; two Nones: no epsilon."""
    lines = []
    for method, stage, of in (("Double-Spider", "private stage, ", spider_parts),
                              ("DP-SGDA", "", sgda_parts)):
        for epsilon in PUBLISHED[method]:
            parts, deviation = of(epsilon)
            rate = 1.0 if stage else parts[0][1]
            found: dict[str, tuple[float | None, float | None]] = {}
            if stage:
                found["as run, from a model trained without privacy"] = None, None
            found[stage + "first release, records of any size"] = (
                truth.once(deviation, rate, DELTA), None)
            found[stage + "records clipped"] = truth.bracket(parts, N, DELTA)
            lines += [{"method": method, "epsilon_claimed": epsilon, "reading": reading,
                       "neighbours": "replace one", "low": low, "high": high}
                      for reading, (low, high) in found.items()]
    return lines


def printed(result: dict[str, Any]) -> str:
    """The published accuracies as a table of a page."""
    levels = sorted({float(epsilon) for line in result["published"].values() for epsilon in line})
    return report.markdown(["claimed ε", *(f"{x:g}" for x in levels)], [
        [method, *("{:.2f} ± {:.2f}".format(*line[f"{x:g}"]) if f"{x:g}" in line else ""
                   for x in levels)] for method, line in result["published"].items()])


def main(argv: list[str] | None = None) -> int:
    """Computes and prints the table; 0."""
    p = report.Parser(__file__, __doc__)
    p.add_argument("--json", nargs="?", type=report.output(".json"),
                   const=str(page.RESULTS / "robust.json"), help="write the results to this file")
    args = p.parse_args(argv)
    lines = noise()
    report.save(args, {"delta": DELTA, "noise": lines, "published": {
        method: {f"{epsilon:g}": list(pair) for epsilon, pair in line.items()}
        for method, line in PUBLISHED.items()}}, {})
    print(page.programs({"noise": lines}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
