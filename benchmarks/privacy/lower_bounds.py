"""How much of the accountant's bound explicit neighbouring data sets attain, over one or two steps.

    python -m benchmarks.privacy.lower_bounds [--json FILE]

For small data sets every sample that a sampler can draw is enumerated, so a release is a finite
mixture of Gaussians, in one or two dimensions. The other records' vectors are all alike, all
opposite, or drawn at random. In a second step the adversary may choose them, and who is who of the
differing record, by the first output: not at all ("fixed"), by its sign ("sign"), or by all of it
("whole"). Of indices of the largest score the adversary chooses all scores, by all earlier indices;
of a difference behind an anchor how far apart its points are, by the anchor's answer.

Outputs are rounded to cells whose masses are differences of normal distribution functions, and
cells of nearly equal likelihood ratio are merged. That is post-processing, so the divergences are
attained up to rounding of floats, however coarse the cells: a ratio attained / claimed above 1
would refute the bound.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, special

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.examples.methods.windows import Difference, Windows
from benchmarks.privacy import selection_bounds
from jaxminimax import Saddle
from jaxminimax.accounting import curve, gaussian, pairs
from jaxminimax.mechanism.factorisation import coefficients

SAMPLERS = ("poisson", "fixed", "replacement")
_CELLS = {1: 6000, 2: 180}  # on an axis
_MERGED = 2e-3  # log-likelihood ratios that count as one; costs its square


class Pair(NamedTuple):
    """Masses of an output's cells under two neighbouring data sets, and its first sign."""

    p: np.ndarray
    q: np.ndarray
    positive: np.ndarray


def samples(sampler: str, n: int, m: int, step: int = 0) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every sample with its probability; for Poisson sampling the rate is m / n."""
    match sampler:
        case "full":
            yield 1.0, tuple(range(n))
        case "disjoint":
            yield 1.0, tuple(range(step * m, (step + 1) * m))
        case "poisson":
            rate = m / n
            for bits in itertools.product((0, 1), repeat=n):
                k = sum(bits)
                yield rate**k * (1 - rate) ** (n - k), tuple(i for i in range(n) if bits[i])
        case "fixed":
            subsets = list(itertools.combinations(range(n), m))
            for subset in subsets:
                yield 1 / len(subsets), subset
        case "replacement":
            for draw in itertools.product(range(n), repeat=m):
                yield n**-m, draw
        case _:
            raise ValueError(f"no samples of {sampler!r} are listed here")


def mixture(sampler: str, m: int, records: np.ndarray,
            step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weights `[k]` and means `[k, d]` of the sum over a sample of `records` `[n, d]`."""
    merged: dict[tuple[float, ...], float] = {}
    for weight, chosen in samples(sampler, len(records), m, step):
        mean = tuple(np.round(records[list(chosen)].sum(0) if chosen else 0 * records[0], 12) + 0.0)
        merged[mean] = merged.get(mean, 0.0) + weight
    return np.array(list(merged.values())), np.array(list(merged))


def masses(means: np.ndarray, sigma: float, edges: np.ndarray) -> np.ndarray:
    """Mass `[k, cells]` of N(mean, sigma^2) between the edges; upper tails keep their digits."""
    x = (edges - means[:, None]) / sigma
    low, high = x[:, :-1], x[:, 1:]
    right = low > 0
    return special.ndtr(np.where(right, -low, high)) - special.ndtr(np.where(right, -high, low))


def pair(one: tuple[Any, ...], other: tuple[Any, ...], sigma: float) -> Pair:
    """The cells of two Gaussian mixtures in one or two dimensions."""
    means = np.concatenate([one[1], other[1]])
    dim = means.shape[1]
    reach = float(np.abs(means).max()) + 8 * sigma
    edges = np.linspace(-reach, reach, _CELLS[dim] + 1)  # an even number: 0 is an edge
    positive = np.repeat(edges[:-1] >= 0, _CELLS[dim] ** (dim - 1))
    edges[0], edges[-1] = -math.inf, math.inf

    def cells(weights: np.ndarray, centers: np.ndarray) -> np.ndarray:
        axes = [masses(c, sigma, edges) for c in centers.T]
        first = weights[:, None] * axes[0]
        return first.sum(0) if dim == 1 else (first.T @ axes[1]).ravel()

    return merge(Pair(cells(*one), cells(*other), positive))


def losses(these: Pair) -> np.ndarray:
    """Ln p / q of every cell, infinite where a mass is 0."""
    with np.errstate(divide="ignore"):
        return np.log(these.p) - np.log(these.q)


def merge(these: Pair) -> Pair:
    """Cells on one side of 0 with nearly the same likelihood ratio made one."""
    kept = (these.p > 0) | (these.q > 0)
    these = Pair(*(x[kept] for x in these))
    cell = np.round(np.clip(losses(these), -60, 60) / _MERGED).astype(int)
    _, where = np.unique(2 * cell + these.positive, return_inverse=True)
    p, q, positive = (np.bincount(where, weights=x) for x in these)
    return Pair(p, q, positive > 0)


def divergence(these: Pair, alpha: float) -> float:
    """H_alpha of the rounded outputs."""
    return float(np.sum(np.maximum(these.p - alpha * these.q, 0.0)))


def profile(these: Pair, log_alpha: np.ndarray) -> np.ndarray:
    """H at exp(log_alpha), for many at once."""
    order = np.argsort(losses(these))
    p, q = these.p[order], these.q[order]
    above = np.append(np.cumsum(p[::-1])[::-1], 0.0), np.append(np.cumsum(q[::-1])[::-1], 0.0)
    i = np.searchsorted(losses(these)[order], log_alpha, side="right")
    return above[0][i] - np.exp(np.minimum(log_alpha, 600.0)) * above[1][i]


def two_steps(first: list[Pair], second: list[Pair], epsilon: float) -> dict[str, float]:
    """The largest H_alpha over two steps, by how much of the first output the adversary uses."""
    best = dict.fromkeys(("fixed", "sign", "whole"), 0.0)
    for these in first:
        some = Pair(*(x[these.p > 0] for x in these))
        left = epsilon - losses(some)
        value = np.array([some.p * profile(after, left) for after in second])
        signs = [value[:, side].sum(1).max() for side in (some.positive, ~some.positive)]
        for how, attained in (("fixed", value.sum(1).max()), ("sign", sum(signs)),
                              ("whole", value.max(0).sum())):
            best[how] = max(best[how], float(attained))
    return best


def neighbours(dim: int, n: int, rng: np.random.Generator) -> list[tuple[np.ndarray, ...]]:
    """Pairs of data sets of unit vectors and shorter ones that differ in their first record."""
    ones = np.ones((n - 1, 1))
    pairs = []
    for rest in (ones, -ones, 0 * ones, rng.choice([-1.0, 1.0], (n - 1, 1)),
                 rng.uniform(-1, 1, (n - 1, 1))):
        rest = np.hstack([rest, np.zeros((n - 1, dim - 1))])
        pairs.append((np.eye(dim)[:1], -np.eye(dim)[:1], rest))
    if dim == 2:  # others across, or turned by a random angle each and shortened at random
        angle, length = rng.uniform(0, 2 * math.pi, n - 1), rng.uniform(0, 1, n - 1) ** 0.5
        turned = (length * np.stack([np.cos(angle), np.sin(angle)])).T
        x, y = np.eye(2)[:1], np.eye(2)[1:]
        pairs = [*pairs[:2], (x, -x, ones * y), (x, -x, turned), (x, y, turned), (x, y, -ones * x)]
    return [(np.vstack([a, rest]), np.vstack([b, rest])) for a, b, rest in pairs]


def claimed(sampler: str, n: int, m: int, z: float, alpha: float) -> float:
    """The accountant's bound on H_alpha of one release; `z` is noise over clip norm."""
    if alpha < 1:
        return 1 - alpha + alpha * claimed(sampler, n, m, z, 1 / alpha)
    epsilon = np.array([math.log(alpha)])
    match sampler:
        case "poisson":
            return float(pairs._Mixtures(1, 1, m / n, z)(epsilon)[0])
        case "fixed" | "replacement":
            return float(gaussian.Profile(n, m, z / 2, sampler == "replacement")(epsilon)[0])
    raise ValueError(f"the accountant's bound for one release of {sampler!r} is not listed here")


def described(sampler: str, n: int, m: int, z: float, times: int) -> jmm.Repeat:
    """The releases in the accountant's words."""
    how: Any = {"full": jmm.Full(), "disjoint": jmm.Disjoint(batch=m),
                "poisson": jmm.Poisson(rate=m / n, capacity=n), "fixed": jmm.FixedSize(batch=m),
                "replacement": jmm.FixedSize(batch=m, replacement=True)}[sampler]
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), sampling=how,
                      population=n)
    return jmm.Repeat(query=query, times=times)


def composed(mechanism: jmm.mechanism.Description, epsilon: float) -> float:
    """The accountant's bound on delta of all releases, samplers taken as exact."""
    (cost,) = curve.charges(mechanism, "replace_one")
    if not cost.losses:
        mu = 2 * math.sqrt(cost.gaussian)
        return float(special.ndtr(mu / 2 - epsilon / mu)
                     - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu))
    return curve.charge_delta(cost.described(), epsilon, "replace_one")


def table(dim: int, sizes: list[tuple[int, int]], seed: int = 0) -> list[dict[str, Any]]:
    """One step: the largest ratio attained / claimed for each sampler, size, noise and alpha."""
    rng = np.random.default_rng(seed)
    rows = []
    for sampler, (n, m), z in itertools.product(SAMPLERS, sizes, (0.7, 1.5, 4.0)):
        worst = dict.fromkeys((0.5, 1.0, 1.3, 2.0, 4.0), 0.0)
        for one, other in neighbours(dim, n, rng):
            these = pair(mixture(sampler, m, one), mixture(sampler, m, other), z)
            for alpha in worst:
                ratio = divergence(these, alpha) / claimed(sampler, n, m, z, alpha)
                worst[alpha] = max(worst[alpha], ratio)
        rows += [{"steps": 1, "sampler": sampler, "dimension": dim, "n": n, "m": m,
                  "noise_multiplier": z, "alpha": alpha, "attained_over_claimed": ratio}
                 for alpha, ratio in worst.items()]
    return rows


def row(sampler: str, dim: int, n: int, m: int, z: float, epsilon: float,
        pairs: Sequence[list[Pair]]) -> dict[str, Any]:
    """Two steps: the divergences at e^epsilon beside the accountant's delta."""
    attained = two_steps(pairs[0], pairs[1], epsilon)
    bound = composed(described(sampler, n, m, z, 2), epsilon)
    return {"steps": 2, "sampler": sampler, "dimension": dim, "n": n, "m": m,
            "noise_multiplier": z, "epsilon": epsilon, **attained, "claimed": bound,
            "attained_over_claimed": max(attained.values()) / bound}


def cells(sampler: str, m: int, z: float, data: list[tuple[np.ndarray, ...]],
          step: int) -> list[Pair]:
    """Both orders of every pair of neighbours."""
    made = []
    for one, other in data:
        these = pair(mixture(sampler, m, one, step), mixture(sampler, m, other, step), z)
        made += [these, Pair(these.q, these.p, these.positive)]
    return made


def two_step_table(dim: int, sizes: list[tuple[int, int]], noises: tuple[float, ...] = (0.7, 2.0),
                   seed: int = 0) -> list[dict[str, Any]]:
    """Two adaptive steps of every sampler, size, noise and epsilon."""
    rng = np.random.default_rng(seed)
    rows = []
    for sampler, (n, m), z in itertools.product(("full", "disjoint", *SAMPLERS), sizes, noises):
        if sampler == "disjoint" and 2 * m > n:
            continue  # a second pass begins
        data = neighbours(dim, n, rng)
        pairs = [cells(sampler, m, z, data, step) for step in (0, 1)]
        rows += [row(sampler, dim, n, m, z, epsilon, pairs) for epsilon in (0.0, 0.3, 1.0, 3.0)]
    return rows


def cited() -> list[dict[str, Any]]:
    """Ten records, four drawn: beats composing the library's add and remove pairs, .141984 at .3.

    The others are all alike, anywhere between the two vectors of the differing record.
    """
    n, m, z = 10, 4, 2.0
    data = [tuple(np.array([[x], *[[c]] * (n - 1)]) for x in (1.0, -1.0))
            for c in np.linspace(-1, 1, 5)]
    made = cells("fixed", m, z, data, 0)
    return [row("fixed", 1, n, m, z, epsilon, [made, made]) for epsilon in (0.3, 1.0)]


def correlated_table() -> list[dict[str, Any]]:
    """Releases with correlated noise: the first record against its opposite, by linear algebra.

    All releases are one Gaussian vector of covariance z^2 R R^T, and the record moves it by twice
    the ones at the releases that read it.
    """
    rows = []
    for releases, bands, apart, z, epsilon in itertools.product(
            (1, 8, 60), (1, 3, 8), (None, 5), (1.5, 8.0), (0.3, 1.0)):
        if apart is None:
            made: Any = jmm.mechanism.CorrelatedSums(clip=1.0, noise_multiplier=z, leaves=releases,
                                                     bands=bands, parameters=1)
        else:
            made = described("disjoint", apart, 1, z, releases)
            made = dataclasses.replace(made, query=dataclasses.replace(
                made.query, bands=bands, parameters=1))
        a = coefficients(bands)[:releases] / coefficients(1)[0]
        r = linalg.toeplitz(np.pad(a, (0, releases - len(a))), np.zeros(releases))
        move = 2.0 * (np.arange(releases) % (apart or releases) == 0)
        mu = math.sqrt(move @ np.linalg.solve(z**2 * r @ r.T, move))
        attained = float(special.ndtr(mu / 2 - epsilon / mu)
                         - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu))
        bound = composed(made, epsilon)
        rows.append({"steps": releases, "sampler": "leaves" if apart is None else "disjoint",
                     "bands": bands, "noise_multiplier": z, "epsilon": epsilon,
                     "attained": attained, "claimed": bound,
                     "attained_over_claimed": attained / bound})
    return rows


def turns_table() -> list[dict[str, Any]]:
    """Parts in turn, noise that begins anew: a record of part 0 against its opposite.

    In each window it moves C g, whose noise is independent, by the first column of C where it is
    drawn, and along that line both data sets are mixtures of two normal laws.
    """
    rows = []
    for windows, parts, rate, z, epsilon in itertools.product(
            (1, 2), (1, 3, 8), (0.1, 0.5), (0.7, 2.0), (0.3, 1.0)):
        made = described("poisson", 40 * parts, 1, z, windows * parts)
        made = dataclasses.replace(made, query=dataclasses.replace(
            made.query, bands=parts, parameters=1,
            sampling=jmm.mechanism.CyclicPoisson(rate=rate, parts=parts)))
        r = linalg.toeplitz(coefficients(parts) / coefficients(1)[0], np.zeros(parts))
        far = np.linalg.norm(np.linalg.inv(r)[:, 0])
        weights = np.array([1 - rate, rate])
        one, other = (np.array([[0.0], [side * far]]) for side in (1.0, -1.0))
        these = pair((weights, one), (weights, other), z)
        attained = (divergence(these, math.exp(epsilon)) if windows == 1 else
                    two_steps([these], [these], epsilon)["whole"])
        bound = composed(made, epsilon)
        rows.append({"steps": windows * parts, "sampler": "in turn", "bands": parts, "rate": rate,
                     "noise_multiplier": z, "epsilon": epsilon, "attained": attained,
                     "claimed": bound, "attained_over_claimed": attained / bound})
    return rows


# how far the adversary moves the point after the anchor's answer, for the clip of the difference
_MOVES: dict[str, Callable[[float], float]] = {"always 1": lambda y: 1.0, "by the answer": abs,
          "by its sign": lambda y: 0.0 if y < 0 else 2.0}


def windows_table() -> list[dict[str, Any]]:
    """An anchor and a difference, clipped at a length that the adversary reads off the first.

    Everything is in absolute numbers: the second answer has cells of its own, whatever its noise.
    """
    rows, rng = [], np.random.default_rng(0)
    far = np.geomspace(1e-2, 1e2, 150)
    edges = np.concatenate([[-math.inf], -far[::-1], [0.0], far, [math.inf]])
    first = np.linspace(-12.0, 12.0, 201)
    middles, first[[0, -1]] = (first[1:] + first[:-1]) / 2, (-math.inf, math.inf)
    for sampler, (n, m), noise, (name, move) in itertools.product(
            ("full", "poisson", "fixed"), ((3, 2),), ((1.0, 2.0), (3.0, 1.5)), _MOVES.items()):
        worst = dict.fromkeys((0.3, 1.0), 0.0)
        for data in neighbours(1, n, rng):
            sides = [mixture(sampler, m, x) for x in data]
            p, q = (w @ masses(c[:, 0], noise[0], first) for w, c in sides)
            lengths = [move(y) for y in middles]
            # equal points: the answer is 0, and says nothing
            after = [[w @ masses(x * c[:, 0], x * noise[1], edges) for w, c in sides] if x
                     else [np.ones(1)] * 2 for x in lengths]
            for epsilon, (one, other) in itertools.product(worst, ((0, 1), (1, 0))):
                a, b = ((p, q)[k] for k in (one, other))
                found = sum(np.maximum(a[i] * x[one] - math.exp(epsilon) * b[i] * x[other], 0).sum()
                            for i, x in enumerate(after))
                worst[epsilon] = max(worst[epsilon], float(found))
        anchor = described(sampler, n, m, noise[0], 1).query
        anchor = dataclasses.replace(anchor, clip=Saddle(1.0, 1.0), joint=True,
                                     noise_multiplier=Saddle(noise[0], noise[0]))
        made = Windows(anchor=anchor, length=2, rounds=2,
                                     difference=Difference(
            lipschitz=1.0, noise_multiplier=noise[1], sampling=anchor.sampling, population=n))
        rows += [{"steps": 2, "sampler": sampler, "moves": name, "n": n, "m": m,
                  "noise_multipliers": noise, "epsilon": epsilon, "attained": attained,
                  "claimed": (bound := composed(made, epsilon)),
                  "attained_over_claimed": attained / bound} for epsilon, attained in worst.items()]
    return rows


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 1 if a bound is exceeded."""
    began = time.perf_counter()
    p = report.Parser(__file__, __doc__, "json")
    args = p.parse_args(argv)
    one = table(1, [(2, 1), (3, 2), (4, 3), (5, 2)]) + table(2, [(3, 1), (3, 2)])
    two = [*cited(), *two_step_table(1, [(2, 1), (3, 2), (4, 2), (5, 3)]),
           *two_step_table(2, [(2, 1), (3, 2), (4, 2)])]
    three, turns = correlated_table(), turns_table()
    chosen, four = selection_bounds.table(), windows_table()
    for rows in (one, two, three, turns, chosen, four):
        print(report.table(list(rows[0]), [[f"{x:.5g}" if isinstance(x, float) else str(x)
                                            for x in r.values()] for r in rows]), end="\n\n")
    every = one + two + three + turns + chosen + four
    worst = max(r["attained_over_claimed"] for r in every)
    print(f"largest attained / claimed: {worst:.9f} over {len(every)} cases, "
          f"{time.perf_counter() - began:.1f} s")
    report.save(args, {"rows": every, "statements": []})
    return 0 if worst <= 1 + 1e-9 else 1


if __name__ == "__main__":
    raise SystemExit(main())
