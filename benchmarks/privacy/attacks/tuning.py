"""`python -m benchmarks.privacy.attacks.tuning`: how near attacks on a search come to its charge.

The attack sees the winner. Runs are Gaussian with distance mu, and the score, which may be any
function of what a run releases, puts the lowest privacy losses on top, with about the mass gamma,
and after them the highest ones. The winner's law is then known in closed form on both data sets,
and so is the epsilon that is attained; no bound may fall below it.
"""

import math

import numpy as np
from scipy import special, stats

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax.mechanism.repetitions import BITS

CASES = tuple((mu, expected, eta, most) for mu in (0.25, 1.0) for expected in (10.0, 100.0)
              for eta, most in ((0.0, None), (1.0, None), (0.0, 10 * int(expected))))


def run_of(mu: float) -> jmm.mechanism.Solution:
    """One run: a Gaussian whose distance between neighbours is mu."""
    return jmm.mechanism.Solution(sensitivity=1.0, because="-", noise_multiplier=1 / mu)


def attained(mu: float, delta: float, runs: jmm.mechanism.Repetitions) -> float:
    """Epsilon of the attack at delta: the best over the place where the two orders meet."""
    x = np.linspace(-12, 12, 24_001)
    width, cdf, pdf = x[1] - x[0], special.ndtr, stats.norm.pdf
    law = np.asarray([w / 2**BITS for w in runs.weights])
    below = np.linspace(0, 1, 4001) ** 0.25  # f' by a table, finer at 1
    slope = np.polynomial.polynomial.polyval(below, law * np.arange(1, len(law) + 1))

    def winner(top: np.ndarray, mean: float, u: float) -> np.ndarray:
        """The density of the winner's x, from the chance that a run scores below x."""
        chance = np.where(top, 1 - cdf(x - mean), cdf(x - mean) - cdf(u - mean))
        return np.interp(chance, below, slope) * pdf(x - mean)

    best = 0.0
    for u in np.linspace(-3, 0.5, 15):
        top = x < u  # losses grow with x
        p, q = winner(top, mu, u), winner(top, 0.0, u)
        low, high = 0.0, 30.0
        for _ in range(40):
            middle = (low + high) / 2
            above = np.maximum(p - math.exp(middle) * q, 0).sum() * width > delta
            low, high = (middle, high) if above else (low, middle)
        best = max(best, low)
    return best


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 1 if a bound is below the attack."""
    parser = report.Parser(__file__, __doc__, "json")
    parser.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    args = parser.parse_args(argv)
    rows = []
    for mu, expected, eta, most in CASES:
        runs = jmm.mechanism.Repetitions(expected=expected, eta=eta, most=most)
        rows.append({"mu": mu, "expected": expected, "eta": eta, "most": len(runs.weights),
                     "charged": jmm.accounting.tuned_epsilon(run_of(mu), args.delta, runs),
                     "attained": attained(mu, args.delta, runs)})
    print(report.table(("mu", "expected", "eta", "most", "charged", "attained", "ratio"), [
        (f"{r['mu']:g}", f"{r['expected']:g}", f"{r['eta']:g}", str(r["most"]),
         f"{r['charged']:.4f}", f"{r['attained']:.4f}", f"{r['charged'] / r['attained']:.4f}")
        for r in rows]))
    report.save(args, {"rows": rows})
    return int(any(r["charged"] < r["attained"] for r in rows))


if __name__ == "__main__":
    raise SystemExit(main())
