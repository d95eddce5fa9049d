"""Certificates in simulation: how often they are below the truth, and how wide they are.

    python -m benchmarks.rates.certificates [--json FILE] [--runs RUNS]

Random bilinear games on two unit balls of dimension 3, 16 kinds of records, trained by the law of
`optimistic`'s plan (full batches: the mean operator plus Gaussian noise) on the records that are
not held out; and groups whose losses are 0 or 1, the widest law, with risks from 0.1 to 0.4. What
is released is drawn by the law of its description; bounds are those of `jmm.certify`. Beside a gap
stands the smallest guarantee of a plan on all n records, from the centre.
"""

import math
from typing import Any

import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax.drivers.certificates import bound_gap, bound_risk
from jaxminimax.mechanism import held_out

DELTA, BETA, RUNS = 1e-6, 0.05, 200
DIM, KINDS, DIAMETER = 3, 16, math.sqrt(8)
EPSILONS = (0.5, 1.0, 4.0)


def _ball(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(1, np.linalg.norm(x, axis=-1, keepdims=True))


class Games:
    """Games f = <w, A v> + <a, w> + <b, v>, by kinds of records, operators of norm at most 1."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        shift = (count, KINDS, DIM)

        def one(shape: tuple[int, ...], widths: tuple[float, float], spread: float) -> np.ndarray:
            tail = (1,) * (len(shape) - 1)
            mean = rng.normal(size=(count, 1, *shape[2:])) * rng.uniform(*widths, (count, *tail))
            return mean + rng.normal(size=shape) * rng.uniform(0, spread, (count, *tail))

        a, b, c = one((*shift, DIM), (0.05, 1), 0.7), one(shift, (1, 1), 1.5), one(shift, (1, 1),
                                                                                   1.5)
        op = np.linalg.norm(a, 2, axis=(2, 3))
        size = np.hypot(np.linalg.norm(b, axis=2) + op, np.linalg.norm(c, axis=2) + op).max(1)
        self.kinds = a / size[:, None, None, None], b / size[:, None, None], c / size[:, None, None]
        self.smooth = float(np.linalg.norm(self.kinds[0], 2, axis=(2, 3)).max())

    def mean(self, counts: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """The mean game of samples by how many of each kind they have; None: the population."""
        if counts is None:
            return tuple(x.mean(1) for x in self.kinds)
        share = counts / counts.sum(1, keepdims=True)
        return tuple(np.einsum("ik,ik...->i...", share, x) for x in self.kinds)


def _gap(w: np.ndarray, v: np.ndarray, game: tuple[np.ndarray, ...]) -> np.ndarray:
    a, b, c = game
    upper = np.linalg.norm(np.einsum("iab,ia->ib", a, w) + c, axis=1)
    lower = np.linalg.norm(np.einsum("iab,ib->ia", a, v) + b, axis=1)
    return (b * w).sum(1) - (c * v).sum(1) + upper + lower


def _trained(rng: np.random.Generator, game: tuple[np.ndarray, ...], population: int,
             smooth: float, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """The average of optimistic steps, by the law of their plan."""
    plan = jmm.plan(jmm.optimistic, population=population, smooth=smooth, radius=DIAMETER / 2,
                    dim=2 * DIM, bound=1.0, diameter=DIAMETER, epsilon=epsilon, delta=DELTA)
    sigma = float(plan.hyper.query.noise_multiplier.w) / population
    a, b, c = game
    w = v = np.zeros_like(b)
    total, weight, old = [np.zeros_like(b), np.zeros_like(b)], 0.0, None
    for t in range(1, plan.hyper.iterations + 1):
        g = (b + np.einsum("iab,ib->ia", a, v) + sigma * rng.normal(size=b.shape),
             -c - np.einsum("iab,ia->ib", a, w) + sigma * rng.normal(size=b.shape))
        total, weight = [s + t * x for s, x in zip(total, (w, v), strict=True)], weight + t
        old = old or g
        w, v = (_ball(x - float(plan.hyper.step.w) * (2 * now - before))
                for x, now, before in zip((w, v), g, old, strict=True))
        old = g
    return total[0] / weight, total[1] / weight


def gaps(rng: np.random.Generator, n: int, epsilon: float, share: float,
         runs: int) -> dict[str, Any]:
    """One row: certificates of the strong gap."""
    h, games = int(share * n), Games(rng, runs)
    train, held = (games.mean(rng.multinomial(k, np.full(KINDS, 1 / KINDS), runs))
                   for k in (n - h, h))
    w, v = _trained(rng, train, n - h, games.smooth, epsilon)
    query = jmm.accounting.calibrate_noise(jmm.mechanism.HeldOutBound(
        bound=1.0, population=h), epsilon, DELTA)
    radius = np.hypot(1 + np.linalg.norm(w, axis=1), 1 + np.linalg.norm(v, axis=1))
    unit = float(query.noise_multiplier) * held_out.length(query, 1.0)
    y = _gap(w, v, held) + unit * radius * rng.normal(size=runs)
    widths = [bound_gap(*one, BETA) for one in zip(y, [query] * runs, radius, strict=True)]
    true = _gap(w, v, games.mean())
    bounds = np.array([x.bound for x in widths])
    best = jmm.plans(epsilon=epsilon, delta=DELTA, population=n, dim=2 * DIM, bound=1.0,
                     smooth=games.smooth, diameter=DIAMETER, radius=DIAMETER / 2)[0]
    assert best.plan is not None
    return {"of": "strong gap", "n": n, "epsilon": epsilon, "share": share, "runs": runs,
            "below": int((bounds < true).sum()), "true": float(true.mean()),
            "bound": float(bounds.mean()), "noise": float(np.mean([x.noise for x in widths])),
            "sampling": float(np.mean([x.sampling for x in widths])),
            "guarantee": best.plan.guarantee, "by": best.name}


def groups(rng: np.random.Generator, count: int, h: int, epsilon: float,
           runs: int) -> dict[str, Any]:
    """One row: certificates of the worst group's risk, of h records held out of each."""
    losses = jmm.accounting.calibrate_noise(
        jmm.GroupLosses(bound=1.0, sizes=(h,) * count), epsilon, DELTA)
    true = np.linspace(0.1, 0.4, count)
    draw = rng.normal if losses.gaussian else rng.laplace
    y = rng.binomial(h, true, (runs, count)) / h + draw(
        size=(runs, count)) * float(losses.noise_multiplier) / h
    widths = [bound_risk(one, losses, BETA) for one in y]
    bounds = np.array([x.bound for x in widths])
    return {"of": f"{count} groups", "n": h, "epsilon": epsilon, "share": None, "runs": runs,
            "below": int((bounds < 0.4).sum()), "true": 0.4, "bound": float(bounds.mean()),
            "noise": float(np.mean([x.noise for x in widths])),
            "sampling": float(np.mean([x.sampling for x in widths])), "guarantee": None, "by": ""}


def main(argv: list[str] | None = None) -> int:
    """Simulates all cells."""
    parser = report.Parser(__file__, __doc__.split("\n")[0], "json")
    parser.add_argument("--runs", type=report.count, default=RUNS, help="games of a cell")
    parser.add_argument("--quick", action="store_true", help="the smallest n alone")
    args = parser.parse_args(argv)
    rng, rows = np.random.default_rng(0), []
    for n in (1000,) if args.quick else (1000, 10_000, 100_000):
        for epsilon in EPSILONS:
            for share in (0.05, 0.1, 0.2):
                rows.append(gaps(rng, n, epsilon, share, args.runs))
                report.say(str(rows[-1]))
    for count, h in ((5, 200),) if args.quick else ((5, 200), (5, 1000), (10, 5000)):
        for epsilon in EPSILONS:
            rows.append(groups(rng, count, h, epsilon, 10 * args.runs))
            report.say(str(rows[-1]))
    report.save(args, {"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
