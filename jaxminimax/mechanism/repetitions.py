"""The number of runs of a private search, a random number whose law hides the search.

Theorem (private selection). A run M has a privacy profile d(e): for neighbouring data, in either
direction, H_{exp(e)}(M(D) || M(D')) <= d(e), H_a(P || Q) the integral of (P - a Q)_+. Draw K, make
K independent runs, release the one with the best score, a part of its output. With

    p_k = P[K = k] proportional to (1 - g)^k Gamma(k + eta) / k!,     1 <= k <= most,

(the negative binomial law truncated at zero, and at `most`), for every e1 >= 0 with

    d(e1) <= g / (1 - g) (exp(e1) - 1)

the search has the profile E[K] d(e - (eta + 1) e1).

Proof. Let F(y) be the probability that a run scores below output y, f(x) = sum_k p_k x^k. Ties are
broken by a number of their own, a part of y. The released output has density f'(F(y)) dP(y), so if
f'(F_P) <= R f'(F_Q) everywhere then

    H_{exp(e)} <= int f'(F_P) (dP - exp(e) / R dQ)_+ <= f'(1) d(e - ln R),     f'(1) = E[K].

Without an upper end f'(x) is proportional to (1 - (1 - g) x)^(-eta - 1), and 1 - (1 - g) x =
g + (1 - g)(1 - x). As 1 - F_P >= exp(-e1) (1 - F_Q - d(e1)), the condition on e1 gives
g + (1 - g)(1 - F_P) >= exp(-e1) (g + (1 - g)(1 - F_Q)), which is ln R = (eta + 1) e1.

An upper end is free. The slope of ln f'(x) in ln x is the mean of k - 1 under weights
k p_k x^(k - 1), and leaving out the largest k lowers that mean. So for F_P > F_Q the ratio of f' is
at most what it was; for F_P <= F_Q it is at most 1, as f' grows. QED

If every p_k is realised up to a factor of 1 +- r, then f' is, and ln R grows by ln((1 + r) /
(1 - r)). Given K = k the cost is nearly that of k runs: K must stay secret.

Sources: Liu and Talwar, STOC 2019; Papernot and Steinke, "Hyperparameter tuning with Renyi
differential privacy", ICLR 2022 (the law); Koskela, Redberg and Wang, "Privacy profiles for private
selection", ICML 2024 (profiles). The upper end is not in them.
"""

import dataclasses
import functools
import math

import numpy as np

from jaxminimax.base import checks

__all__ = ["Repetitions"]

BITS = 62  # of the word that K is drawn from
_LONGEST = 2**16  # of the table that it is looked up in


@dataclasses.dataclass(frozen=True)
class Repetitions:
    """K, truncated negative binomial: at least 1, `expected` in the mean, at most `most`.

    Attributes:
      expected: E[K], above 1.
      eta: shape, in [-0.9, 10]. Towards -1 the mean is carried by rare and large K, which costs
        less and finds less; 0 is the logarithmic law, 1 the geometric one.
      most: the largest K; in any case K ends where less than 1e-9 of probability is left. A small
        one needs smaller gamma for the same mean, so it costs a little.

    Examples:
        >>> runs = jmm.mechanism.Repetitions(expected=10.0)
        >>> 0.3 < runs.chance_of_trying(10) < 0.6  # that a given one of ten candidates is tried
        True
    """

    expected: float = 10.0
    eta: float = 0.0
    most: int | None = None

    def check(self) -> None:
        """Refuses numbers that no law has.

        Raises:
          ValueError: naming the value and the fix.
        """
        checks.number("expected (number of runs)", self.expected, low=1.0, high=1e4)
        checks.number("eta", self.eta, low=-0.9, high=10.0, closed=True)
        if self.most is not None:
            checks.count("most", self.most, low=2)
            if self.most > _LONGEST:
                raise ValueError(f"most must be at most {_LONGEST}, got {self.most}.")
        _table(self)

    @property
    def gamma(self) -> float:
        """The parameter g of the law."""
        return _table(self)[0]

    @property
    def weights(self) -> tuple[int, ...]:
        """2^62 times the realised P[K = k], k = 1, 2, ...: integers that add up to 2^62."""
        return _table(self)[1]

    @property
    def ratio(self) -> float:
        """The term that the realised law adds to epsilon: ln((1 + r) / (1 - r))."""
        return _table(self)[2]

    @property
    def mean(self) -> float:
        """The mean E[K] of the realised law, rounded up."""
        return _table(self)[3]

    def chance_of_trying(self, candidates: int) -> float:
        """The probability 1 - f(1 - 1/c) that one given candidate of c is tried at all."""
        # none of K runs tries it with probability E[(1 - 1/c)^K] = f(1 - 1/c)
        missed = 1 - 1 / candidates
        return 1 - sum(w / 2**BITS * missed**k for k, w in enumerate(self.weights, 1))

    def summary(self) -> str:
        """The law, in one sentence."""
        return (f"The number of runs is random, truncated negative binomial with eta = "
                f"{self.eta:g} and gamma = {self.gamma:.4g}: {self.mean:.4g} are expected, at most "
                f"{len(self.weights)}, and it is 1 with probability "
                f"{self.weights[0] / 2**BITS:.3g}.")


def _law(eta: float, gamma: float, longest: int) -> np.ndarray:
    """Computes P[K = k], k = 1 ... most, by p_{k+1} / p_k = (1 - gamma) (k + eta) / (k + 1)."""
    k = np.arange(1.0, longest)
    law = np.cumprod(np.append(1.0, (1 - gamma) * (k + eta) / (k + 1)))
    return law / law.sum()


def _mean(eta: float, gamma: float, longest: int) -> float:
    return float(_law(eta, gamma, longest) @ np.arange(1.0, longest + 1))


@functools.lru_cache(maxsize=64)
def _table(asked: Repetitions) -> tuple[float, tuple[int, ...], float, float]:
    """Gamma, the integers of the realised law, how far that is off, and its mean."""
    longest = _LONGEST if asked.most is None else asked.most
    smallest = 1e-9  # of gamma
    if _mean(asked.eta, smallest, longest) < asked.expected:
        raise ValueError(f"No law with eta = {asked.eta:g} and at most {longest} runs has "
                         f"{asked.expected:g} expected ones: raise most"
                         f"{' or eta' if asked.eta < 1 else ''}, or lower expected.")
    low, high = smallest, 1 - 1e-9  # the mean falls with gamma
    for _ in range(60):
        middle = math.sqrt(low * high)
        above = _mean(asked.eta, middle, longest) > asked.expected
        # the mean at `high` is at most `expected`
        low, high = (middle, high) if above else (low, middle)
    law = _law(asked.eta, high, longest)
    # P[K >= k]; the law ends where that is at most 1e-9
    beyond = np.cumsum(law[::-1])[::-1]
    law = law[: max(2, int(np.sum(beyond > 1e-9)))]
    law = law / law.sum()
    weights = [max(1, int(x)) for x in np.round(law * 2.0**BITS)]
    # P[K = 1] takes what rounding leaves over
    weights[0] += 2**BITS - sum(weights)
    # rounding of integers, and of the products and sums that the float64 law is made of
    off = max(abs(w / (2.0**BITS * float(p)) - 1) for w, p in zip(weights, law, strict=True))
    off += 8 * len(weights) * 2.0**-53 + 1e-15
    if not off < 1e-3:
        raise ValueError(f"The law of eta = {asked.eta:g}, expected = {asked.expected:g}, most = "
                         f"{longest} has probabilities too small to be drawn: lower most.")
    # E[K] multiplies delta, so it is rounded up
    mean = sum(k * w for k, w in enumerate(weights, 1)) / 2**BITS * (1 + 1e-15)
    return high, tuple(weights), math.log((1 + off) / (1 - off)), mean
