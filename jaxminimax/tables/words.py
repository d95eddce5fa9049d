"""Settings of a scorer in words, and what its noise means at other deltas."""

from typing import Any

from jaxminimax.accounting import epsilon
from jaxminimax.mechanism.description import Mechanism

NEAR = 0.1  # n delta from which on delta is near 1/n
USUAL = 1e-6


def explain(chosen: Any, few: float, share: float) -> str:
    """Every setting of `Defaults`, a sentence each.

    Args:
      chosen: `Defaults`.
      few: strength below which little is to be expected.
      share: of mu^2 that pays for the moments.
    """
    hyper, n = chosen.hyper, chosen.population
    player = (lambda x: x.w) if chosen.method == "average" else (lambda x: x)
    scale = ("centred and scaled by released means and second moments, with a variance of at least "
             f"{chosen.floor:.3g}"
             if chosen.standardise else "left as they are, since the data are too few for their "
             "moments: only the share of positives is released")
    lines = [
        f"Logistic loss on {n} records",
        f"Features are {scale}; a row longer than 1 is scaled down to 1, and has a constant 1 "
        "beside it",
        f"A share of {share:g} of the budget (of mu squared) pays for that release, and the rest "
        "for gradients",
        f"Sampler: none; the batch of every round is all {n} records",
        f"Clip norm of a record's gradient: {player(hyper.query.clip):.4g}",
        "Noise of a round over the clip norm: "
        f"{float(player(hyper.query.noise_multiplier)):.4g}",
        f"Rounds: {hyper.iterations}, as more of them cost time and no privacy",
        f"Optimiser: heavy-ball gradient steps of {player(hyper.step):.4g} with momentum 0.9, over "
        f"a time of {chosen.time:.4g}, from weights 0"
        + (" and the intercept of the released share of positives"
           if chosen.method == "average" else ""),
        "Averaging: the scorer is the mean of the last half of the points"]
    return ". ".join(lines) + "." + chosen.of_groups() + " ".join(("", *notes(chosen, few)))


def notes(chosen: Any, few: float) -> tuple[str, ...]:
    """What to think of before relying on it: too few data, a delta near 1/n."""
    weak = () if chosen.strength >= few else (
        f"The data outweigh the noise by n mu / sqrt(d) = {chosen.strength:.0f}, below {few:.0f}: "
        "expect little of the score, or ask for a larger epsilon.",)
    near = at_other_deltas(chosen.mechanism(), chosen.population, chosen.delta)
    return (*weak, *((near,) if near else ()))


def other_deltas(described: Mechanism, population: int, delta: float) -> dict[str, float]:
    """Epsilons of the same noise at 1e-6 and 1/n^2, by delta; none where delta is well below 1/n.

    A delta near 1/n makes for a small epsilon: a run may say (1, n^-1.1) where it is
    (1.3, 1e-6).
    """
    if population * delta <= NEAR:
        return {}
    return {f"{x:.3g}": epsilon(described, x) for x in (USUAL, population**-2.0) if x < delta}


def at_other_deltas(described: Mechanism, population: int, delta: float) -> str:
    """`other_deltas` as a sentence, or ""."""
    found = other_deltas(described, population, delta)
    if not found:
        return ""
    each = ", ".join(f"{e:.4g} at delta = {x}" for x, e in found.items())
    return (f"delta = {delta:g} is near 1/n = {1 / population:.3g}, which makes epsilon look "
            f"small: the same noise has epsilon = {each}.")
