"""How much of the accountant's one-release bound explicit neighbouring pairs attain.

    python -m benchmarks.attained [--json FILE]

For small data sets every sample that a sampler can draw is enumerated, the release is then a finite
mixture of Gaussians, and its hockey-stick divergence between two neighbouring data sets is computed
by quadrature: in one dimension with the other records' vectors drawn at random, all alike, or all
opposite, in two dimensions with random ones. A ratio attained / claimed above 1 would refute the
bound.
"""

import argparse
import itertools
import math
from collections.abc import Iterator

import numpy as np

from jaxminimax.accounting import _pld, subsampling

SAMPLERS = ("poisson", "fixed", "replacement")


def samples(sampler: str, n: int, m: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every sample with its probability; for Poisson sampling the rate is m / n."""
    if sampler == "poisson":
        rate = m / n
        for bits in itertools.product((0, 1), repeat=n):
            k = sum(bits)
            yield rate**k * (1 - rate) ** (n - k), tuple(i for i in range(n) if bits[i])
    elif sampler == "fixed":
        subsets = list(itertools.combinations(range(n), m))
        for subset in subsets:
            yield 1 / len(subsets), subset
    else:
        for draw in itertools.product(range(n), repeat=m):
            yield n**-m, draw


def mixture(sampler: str, m: int, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights `[k]` and means `[k, d]` of the sum over a sample of `records` `[n, d]`."""
    merged: dict[tuple[float, ...], float] = {}
    for weight, chosen in samples(sampler, len(records), m):
        mean = tuple(np.round(records[list(chosen)].sum(0) if chosen else 0 * records[0], 12))
        merged[mean] = merged.get(mean, 0.0) + weight
    return np.array(list(merged.values())), np.array(list(merged))


def divergence(one: tuple, other: tuple, sigma: float, alpha: float) -> float:
    """H_alpha of two Gaussian mixtures in one or two dimensions, by the midpoint rule."""
    means = np.concatenate([one[1], other[1]])
    dim = means.shape[1]
    cells = 40_000 if dim == 1 else 360
    axes = []
    for j in range(dim):
        low, high = means[:, j].min() - 7 * sigma, means[:, j].max() + 7 * sigma
        width = (high - low) / cells
        axes.append((low + width * (np.arange(cells) + 0.5), width))

    def density(weights: np.ndarray, centers: np.ndarray) -> np.ndarray:
        total = np.zeros([cells] * dim)
        for weight, center in zip(weights, centers, strict=True):
            factors = [np.exp(-0.5 * ((x - c) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
                       for (x, _), c in zip(axes, center, strict=True)]
            total += weight * (factors[0] if dim == 1 else np.outer(*factors))
        return total

    gap = density(*one) - alpha * density(*other)
    return float(np.sum(np.maximum(gap, 0.0)) * math.prod(width for _, width in axes))


def claimed(sampler: str, n: int, m: int, z: float, alpha: float) -> float:
    """The accountant's bound on H_alpha; `z` is noise over clip norm."""
    if alpha < 1:
        return 1 - alpha + alpha * claimed(sampler, n, m, z, 1 / alpha)
    epsilon = np.array([math.log(alpha)])
    if sampler == "poisson":
        return float(_pld._opposite(epsilon, m / n, z)[0])
    return float(subsampling.profile(epsilon, n, m, z / 2, sampler == "replacement")[0])


def neighbours(dim: int, n: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
    """Pairs of data sets of unit vectors and shorter ones that differ in their first record."""
    others = [np.ones((n - 1, 1)), -np.ones((n - 1, 1)), np.zeros((n - 1, 1)),
              rng.choice([-1.0, 1.0], (n - 1, 1)), rng.uniform(-1, 1, (n - 1, 1))]
    for rest in others:
        rest = np.hstack([rest, np.zeros((n - 1, dim - 1))])
        if dim == 2:  # turned by a random angle each, shortened at random
            angle, length = rng.uniform(0, 2 * math.pi, n - 1), rng.uniform(0, 1, n - 1) ** 0.5
            rest = (length * np.stack([np.cos(angle), np.sin(angle)])).T
        first = np.eye(dim)[:1]
        yield np.vstack([first, rest]), np.vstack([-first, rest])


def table(dim: int, sizes: list[tuple[int, int]], seed: int = 0) -> list[dict]:
    """The largest ratio attained / claimed for each sampler, size, noise and alpha."""
    rng = np.random.default_rng(seed)
    rows = []
    for sampler, (n, m), z in itertools.product(SAMPLERS, sizes, (0.7, 1.5, 4.0)):
        worst = dict.fromkeys((0.5, 1.0, 1.3, 2.0, 4.0), 0.0)
        for one, other in neighbours(dim, n, rng):
            p, q = mixture(sampler, m, one), mixture(sampler, m, other)
            for alpha in worst:
                attained = divergence(p, q, z, alpha)
                bound = claimed(sampler, n, m, z, alpha)
                worst[alpha] = max(worst[alpha], attained / bound)
        rows += [{"sampler": sampler, "dimension": dim, "n": n, "m": m, "noise_multiplier": z,
                  "alpha": alpha, "attained_over_claimed": ratio}
                 for alpha, ratio in worst.items()]
    return rows


def main(argv: list[str] | None = None) -> int:
    from benchmarks import report

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    rows = table(1, [(2, 1), (3, 2), (4, 3), (5, 2)]) + table(2, [(3, 1), (3, 2)])
    for row in rows:
        print("  ".join(f"{x:>11.5g}" if isinstance(x, float) else f"{x:>11}"
                        for x in row.values()))
    worst = max(row["attained_over_claimed"] for row in rows)
    print(f"largest attained / claimed: {worst:.6f} over {len(rows)} cases")
    if args.json:
        report.write_json(args.json, {"environment": report.environment(),
                                      "arguments": vars(args), "rows": rows, "statements": []})
    return 0 if worst <= 1 + 1e-4 else 1


if __name__ == "__main__":
    raise SystemExit(main())
