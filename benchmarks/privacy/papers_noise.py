"""The papers' noise formulas against the accountant: what they claim, and what they give.

    python -m benchmarks.privacy.papers_noise [--json FILE] [--quick]

A row is one formula at one setting. `true` is the accountant's upper bound for the mechanism that
the paper's listing runs, with samplers taken as exact: both players, every release, draws with or
without replacement as printed. `lower` is attained by an explicit pair of neighbouring data sets,
so a value above the claim refutes the formula. `noise / needed` is the formula's noise over the
calibrated one, to a few parts in 1000; below 1 there is too little.
"""

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import special, stats

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.privacy import formulas
from jaxminimax import Saddle
from jaxminimax.accounting import calibration, curve
from jaxminimax.accounting.gaussian import epsilon as gaussian_epsilon
from jaxminimax.mechanism import with_noise
from jaxminimax.mechanism.costs import Charge


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One formula at one setting.

    Attributes:
        paper: Short name.
        formula: Which theorem.
        setting: Its numbers, in words.
        epsilon: What is claimed.
        delta: Likewise.
        mechanism: What the listing runs, with the formula's noise.
        lower: Epsilon of an explicit pair of neighbours, where there is one.
        needed: What a calibrated run does, where that is another mechanism; with the same noise.
        reserve: Part of delta that the paper spends on its solver's failure.
    """

    paper: str
    formula: str
    setting: str
    epsilon: float
    delta: float
    mechanism: Any
    lower: float | None = None
    needed: Any = None
    reserve: float = 0.0


def charges(mechanism: Any) -> tuple[Charge, ...]:
    """The costs with samplers and noise that follow their laws, but for the rates."""
    costs = curve.charges(mechanism, "replace_one")
    return tuple(cost.described() for cost in costs)


def ideal_epsilon(mechanism: Any, delta: float) -> float:
    """Epsilon of `charges`."""
    return max(curve.charge_epsilon(cost, delta, "replace_one") for cost in charges(mechanism))


def factor(mechanism: Any, epsilon: float, delta: float) -> float:
    """By what all noise of a mechanism must be multiplied to reach the target."""
    def at(scale: float) -> float:
        return ideal_epsilon(with_noise(mechanism, scale), delta)

    def guess(scale: float) -> float:
        louder = charges(with_noise(mechanism, scale))
        return max(curve.named_epsilon(cost, delta, "replace_one", rough=True)[0]
                   for cost in louder)

    slow = any(cost.losses for cost in charges(mechanism))
    return calibration.find(at, epsilon, guess if slow else None)


def pair(n: int, batch: int, z: float, times: int, delta: float, *, replacement: bool = False,
         grid: float = 1e-5) -> float:
    """A lower bound on epsilon: all other records' vectors are opposite to the differing one's.

    Then a release is N(k / z, 1) with k the number of slots that the record takes, against N(0, 1);
    losses are rounded down.

    Args:
        n: Records.
        batch: Slots in a sample.
        z: Noise over the replace-one sensitivity of one slot.
        times: Releases.
        delta: The delta of the answer.
        replacement: Whether a record may take several slots.
        grid: Cell of a loss.
    """
    k = np.arange(batch + 1.0 if replacement else 2.0)
    w = stats.binom.pmf(k, batch, 1 / n) if replacement else np.array([1 - batch / n, batch / n])
    k, w = k[w > 1e-20], w[w > 1e-20]
    mu = k / z
    x = np.linspace(-9.0, mu[-1] + 9.0, 400_001)
    # the likelihood ratio grows with x, so its left end is the least of a cell
    loss = special.logsumexp(np.log(w)[:, None] + mu[:, None] * x - mu[:, None] ** 2 / 2, axis=0)
    mass = sum(p * np.diff(special.ndtr(x - m)) for p, m in zip(w, mu, strict=True))
    keep = mass > 1e-22
    cell = np.floor(loss[:-1][keep] / grid).astype(int)
    probs = np.bincount(cell - cell[0], weights=mass[keep])
    pmf = pld_pmf.DensePLDPmf(grid, int(cell[0]), probs, 0.0, False)
    return float(pmf.self_compose(times).get_epsilon_for_delta(delta))


def gaussian(ratio: float, delta: float) -> float:
    """Exact epsilon of a Gaussian with this noise over sensitivity."""
    return gaussian_epsilon(1 / ratio, delta)


def repeat(z: Saddle, n: int, sampling: Any, times: int) -> jmm.Repeat:
    """Releases of sums; z is noise over clip norm."""
    clip = Saddle(*(None if x is None else 1.0 for x in z))
    query = jmm.Query(clip=clip, noise_multiplier=z, sampling=sampling, population=n)
    return jmm.Repeat(query=query, times=times)


def _solution(sensitivity: float, noise: float, slack: float = 0.0) -> jmm.mechanism.Solution:
    return jmm.mechanism.Solution(sensitivity=sensitivity, slack=slack,
                                  because="the paper's assumptions",
                                  noise_multiplier=noise / ((1 + 2 * slack) * sensitivity))


def dpsgda(quick: bool) -> Iterator[Case]:
    """Remark 1, both players, batches drawn with replacement."""
    settings = [(39992, 9373, 1.0, None), (39992, 9373, 0.1, None), (1000, 1000, 1.0, None),
                (60000, 14062, 5.0, None), (60000, 14062, 5.0, 64)]
    for n, times, epsilon, batch in settings[2:3] if quick else settings:
        m = batch or max(1, round(formulas.dpsgda_remark_1_batch(n, times, epsilon)))
        z = formulas.dpsgda_remark_1(1.0, n, times, epsilon, 1e-6) * m
        sampling = jmm.FixedSize(batch=m, replacement=True)
        lower = pair(n, m, z / math.sqrt(8), times, 1e-6, replacement=True,
                     grid={0.1: 1e-6, 1.0: 2e-6}.get(epsilon, 1e-5 if batch is None else 2e-4))
        yield Case(paper="dpsgda", formula="Remark 1", setting=f"n={n}, T={times}, m={m}",
                   epsilon=epsilon, delta=1e-6, lower=lower,
                   mechanism=repeat(Saddle(z, z), n, sampling, times))


def dpgda(quick: bool) -> Iterator[Case]:
    """Theorem 1 with three readings of its constant; full batches, both players."""
    for epsilon in (1.0, 8.0, 20.0):
        for name, constant in (("1", 1.0), ("4", 4.0), ("4 sqrt 2", 4 * math.sqrt(2))):
            z = 1000 * formulas.dpgda_theorem_1(1.0, 1000, 100, epsilon, 1e-6, constant)
            yield Case(paper="dpgda", formula="Theorem 1", setting=f"n=1000, T=100, c={name}",
                       epsilon=epsilon, delta=1e-6, lower=gaussian(z / math.sqrt(800), 1e-6),
                       mechanism=repeat(Saddle(z, z), 1000, jmm.Full(), 100))


def nseg(quick: bool) -> Iterator[Case]:
    """Propositions 3, 5 and 7; two releases an iteration."""
    for epsilon in (1.0, 4.0, 10.0):
        z = formulas.gaussian_proposition_3(1.0, epsilon, 1e-5)
        yield Case(paper="nseg", formula="Proposition 3", setting="one release", epsilon=epsilon,
                   delta=1e-5, mechanism=_solution(1.0, z), lower=gaussian(z, 1e-5))
    z = 11 * formulas.nseg_proposition_5(1.0, 11, 1.0, 1e-5)
    yield Case(paper="nseg", formula="Proposition 5", setting="n=1000, B=11, 90 releases",
               epsilon=1.0, delta=1e-5, lower=gaussian(z / 2, 1e-5),
               mechanism=repeat(Saddle(z, None), 1000, jmm.Disjoint(batch=11), 90))
    for n, epsilon in [(30, 1.0)] if quick else [(30, 0.25), (30, 0.5), (30, 1.0), (30, 2.0),
                                                 (30, 4.0), (30, 8.0), (100, 1.0)]:
        z = formulas.nseg_proposition_7(1.0, epsilon, 1e-5)
        grid = {0.25: 5e-6, 0.5: 5e-6, 1.0: 1e-5, 8.0: 1e-4}.get(epsilon, 2e-5) * min(1, 30 / n)
        yield Case(paper="nseg", formula="Proposition 7", setting=f"n={n}, {2 * n * n} releases",
                   epsilon=epsilon, delta=1e-5, lower=pair(n, 1, z / 2, 2 * n * n, 1e-5, grid=grid),
                   mechanism=repeat(Saddle(z, None), n, jmm.FixedSize(batch=1), 2 * n * n))


def nispp(quick: bool) -> Iterator[Case]:
    """Proposition 10, Corollary 2 and Theorem 7, with the paper's sensitivity and a certified one.

    The pair has constant operators, which move the exact proximal point by 2 M / (lambda B).
    """
    for name, formula, bound, modulus in (
            ("Proposition 10", formulas.nispp_proposition_10, 1.0, 10.72983),
            ("Corollary 2", formulas.nispp_corollary_2, 1.0, 10.72983),
            ("Corollary 2", formulas.nispp_corollary_2, 1e-4, 10.72983e-4)):
        noise = formula(bound, modulus, 10, 1.0, 1e-5)
        exact = 2 * bound / (modulus * 10)
        yield Case(paper="nispp", formula=name, setting=f"M={bound:g}, B=10, B lambda="
                   f"{10 * modulus:.3g}", epsilon=1.0, delta=1e-5,
                   mechanism=_solution(formulas.nispp_proposition_9(bound, modulus, 10), noise),
                   lower=gaussian(noise / exact, 1e-5), needed=_solution(exact, noise, 0.005))
    for epsilon in (1.0,) if quick else (1.0, 8.0):
        noise = formulas.nispp_theorem_7(1.0, 30.0, 30, epsilon, 1e-5)
        full = formulas.nispp_proposition_9(1.0, 30.0, 30)
        by = jmm.FixedSize(batch=30)
        yield Case(paper="nispp", formula="Theorem 7", setting="n=900, B=30, 901 releases",
                   epsilon=epsilon, delta=1e-5,
                   mechanism=repeat(Saddle(2 * noise / full, None), 900, by, 901),
                   lower=pair(900, 30, noise / (full / 2), 901, 1e-5),
                   needed=repeat(Saddle(4 * noise / (1.01 * full), None), 900, by, 901))


def recursive(quick: bool) -> Iterator[Case]:
    """Theorems 12 and 21 and the one-pass formula."""
    for epsilon, t in ((1.0, 1), (4.0, 1), (1.0, 2), (1.0, 3), (1.0, 6)):
        noise = formulas.recursive_theorem_12(1.0, 0.5, 1, t, epsilon, 1e-6)
        moves = 1 / (2**t - 1)  # the exact solution of round t, where the formula has 2 / 2^t
        inexact = 1 - 0.5**t  # the paper's solver, relative to that
        yield Case(paper="recursive", formula="Theorem 12", setting=f"round {t}", epsilon=epsilon,
                   delta=1e-6, mechanism=_solution(moves, noise, inexact), reserve=5e-7,
                   lower=gaussian(noise / moves, 1e-6), needed=_solution(moves, noise, 0.01))
    sampling = jmm.FixedSize(batch=45, replacement=True)
    for constant in (8.0,) if quick else (2.0, 8.0):
        z = 45 * formulas.recursive_theorem_21(1.0, 1000, 125, 1.0, 1e-5, constant)
        yield Case(paper="recursive", formula="Theorem 21", epsilon=1.0, delta=1e-5,
                   setting=f"n'=1000, T=125, m=45, c0={constant:g}",
                   lower=pair(1000, 45, z / 2, 125, 1e-5, replacement=True),
                   mechanism=repeat(Saddle(z, None), 1000, sampling, 125))
    for epsilon in (0.5, 1.0, 4.0):
        z = formulas.recursive_local(1.0, epsilon, 1e-6)
        yield Case(paper="recursive", formula="appendix A.2", setting="one pass, n=1000",
                   epsilon=epsilon, delta=1e-6, lower=gaussian(z / 2, 1e-6),
                   mechanism=repeat(Saddle(z, None), 1000, jmm.Disjoint(batch=1), 1000))


def worst_group(quick: bool) -> Iterator[Case]:
    """Theorems 2, 9 and 13; n records a group, gradients and the losses of all groups released."""
    n, phases = 1024, 10
    step = 3.808356e-3
    noise = formulas.phased_erm_theorem_2(1.0, n, step, 1, 1.0, 1e-6)
    size, modulus, entropy = n // phases, 2 / (step * (n // phases)), 1 / (step * n)
    stated = 3 / size * (1 / modulus + 1 / math.sqrt(modulus * entropy))  # the paper's Lemma 3
    a, b = 2 / (size * math.sqrt(modulus)), 1 / (2 * size * math.sqrt(entropy))
    exact = (a + math.hypot(a, b)) / (2 * math.sqrt(modulus))
    yield Case(paper="worst_group", formula="Theorem 2", setting="n=1024, p=5, phase 1",
               epsilon=1.0, delta=1e-6, mechanism=_solution(stated, noise),
               needed=_solution(exact, noise, 0.01))
    for m, times in [(50, 200)] if quick else [(1, 724), (5, 724), (40, 724), (50, 200)]:
        z = m * formulas.mgr_theorem_9(1.0, 1000, times, 1.0, 1e-6, 1.0)
        scale = formulas.worst_group_laplace(1.0, 1000, times, 1.0, 1e-6, 8.0)
        yield Case(paper="worst_group", formula="Theorem 9", epsilon=1.0, delta=1e-6,
                   setting=f"n=1000, T={times}, m={m}, c=1 and 8",
                   lower=pair(1000, m, z / 2, times - 1, 1e-6, replacement=True,
                              grid=2e-4 if m == 1 else 2e-5),
                   mechanism=_with_losses(z, scale, m, times - 1))
    if quick:
        return
    z = 50 * formulas.ags_theorem_13(1.0, 1000, 5, 17, 1.0, 1e-6, 1.0)
    scale = formulas.worst_group_laplace(1.0, 1000, 17, 1.0, 1e-6, 8.0)
    yield Case(paper="worst_group", formula="Theorem 13", setting="n=1000, T=17, m=50, c=1 and 8",
               epsilon=1.0, delta=1e-6, mechanism=_with_losses(z, scale, 50, 16),
               lower=pair(1000, 50, z / 2, 16, 1e-6, replacement=True))


def _with_losses(z: float, scale: float, m: int, times: int) -> jmm.Sequence:
    sampling = jmm.FixedSize(batch=m, replacement=True)
    losses = jmm.GroupLosses(bound=1.0, sizes=(1000,), noise_multiplier=1000 * scale,
                             times=times)
    return jmm.Sequence(parts=(repeat(Saddle(z, None), 1000, sampling, times), losses))


def cases(quick: bool) -> Iterator[Case]:
    """All rows, or a quick choice of them."""
    for paper in (dpsgda, dpgda, nseg, nispp, recursive, worst_group):
        yield from paper(quick)


def row(case: Case) -> dict[str, Any]:
    """What the accountant says of a case, as a flat record; None: no pair, or no finite bound."""
    true = ideal_epsilon(case.mechanism, case.delta - case.reserve)
    target = case.needed or case.mechanism
    needed = factor(target, case.epsilon, case.delta)
    return {"paper": case.paper, "formula": case.formula, "setting": case.setting,
            "epsilon_claimed": case.epsilon, "delta": case.delta,
            "epsilon_true": true if math.isfinite(true) else None, "epsilon_lower": case.lower,
            "noise_over_needed": 1 / needed}


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 0."""
    began = time.perf_counter()
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--quick", action="store_true", help="fewer and smaller settings")
    args = p.parse_args(argv)
    rows = [row(case) for case in cases(args.quick)]

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    print(report.table(
        ("paper", "formula", "setting", "delta", "epsilon claimed", "true", "lower",
         "noise / needed"),
        [(r["paper"], r["formula"], r["setting"], f"{r['delta']:g}", cell(r["epsilon_claimed"]),
          cell(r["epsilon_true"] or math.inf), cell(r["epsilon_lower"]),
          cell(r["noise_over_needed"])) for r in rows]))
    print("\ntrue: upper bound for what the paper's listing runs; lower: attained by an explicit "
          "pair;\nnoise / needed: the formula's noise over the calibrated one, below 1 too little."
          f"\n\nEverything {time.perf_counter() - began:.1f} s.")
    report.save(args, {"rows": rows, "statements": []})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
