"""The noise formulas of the papers, for comparison only: nothing in the library sets noise by them.

Each function returns what its paper prints, right or wrong; its docstring says what is wrong. Noise
that holds is found by `calibrate` and `calibrate_noise`, from a description of what a run does.

All arguments are public numbers. A standard deviation is per coordinate and of what the paper adds
noise to (a mean of operators, a solution, a group's mean loss), not a noise multiplier. `n` counts
records (of one group, of one round: where it says so), `log` is natural.

Papers: dpsgda: Yang, Hu, Lei, Varshney, Lyu and Ying, 2022. dpgda: Kang, Liu, Li and Wang, 2022.
nseg, nispp: Boob and Guzman, 2023. recursive: Bassily, Guzman and Menart, 2023. worst_group: Zhou
and Bassily, 2024.
"""

import math

from jaxminimax.base import checks
from jaxminimax.mechanism.costs import concrete

_COUNTS = ("n", "iterations", "batch", "groups", "t")


def _log(delta: float, **positive: float) -> float:
    """ln(1 / delta), after refusing numbers that are not positive or not counts."""
    checks.number("delta", delta, low=0.0, high=1.0)
    for name, value in positive.items():
        if name in _COUNTS:
            checks.count(name, value)
        else:
            checks.number(name, value, low=0.0)
        concrete(value)
    return -math.log(concrete(delta))


def dpsgda_theorem_1(lipschitz: float, n: int, iterations: int, epsilon: float, delta: float,
                     constant: float) -> float:
    """Noise c G sqrt(T log(1/delta)) / (n epsilon). Source: dpsgda, Theorem 1.

    The constants c_2, c_3 (and c_1 of the condition epsilon < c_1 m^2 T / n^2, whose restatement
    drops m^2) are never given, so the theorem sets no noise. Its lemma is for other sampling than
    the algorithm's draws with replacement.
    """
    log = _log(delta, lipschitz=lipschitz, n=n, iterations=iterations, epsilon=epsilon,
               constant=constant)
    return float(constant * lipschitz * math.sqrt(iterations * log) / (n * epsilon))


def dpsgda_remark_1(lipschitz: float, n: int, iterations: int, epsilon: float,
                    delta: float) -> float:
    """8 G sqrt(T log(1/delta)) / (n epsilon). Source: dpsgda, Remark 1.

    Holds with a factor of 2.4 to 3 to spare for epsilon <= 1 and the batch of
    `dpsgda_remark_1_batch`; its condition delta <= 1/n^2 excludes the paper's own experiments, and
    with their batch of 64 and epsilon of 5 or 10 it is far from private.
    """
    return dpsgda_theorem_1(lipschitz, n, iterations, epsilon, delta, 8.0)


def dpsgda_remark_1_batch(n: int, iterations: int, epsilon: float) -> float:
    """max(1, n sqrt(epsilon / (4 T))), the batch size that goes with Remark 1 of dpsgda.

    No integer in general; the paper does not say how to round it.
    """
    _log(0.5, n=n, iterations=iterations, epsilon=epsilon)
    return float(max(1.0, n * math.sqrt(epsilon / (4 * iterations))))


def dpgda_theorem_1(lipschitz: float, n: int, iterations: int, epsilon: float, delta: float,
                    constant: float) -> float:
    """Noise c G sqrt(T log(1/delta)) / (n epsilon). Source: dpgda, Theorem 1.

    The theorem says O(.) for all epsilon; c is never given. Its proof yields 4 for one player and
    4 sqrt(2) for two, for epsilon <= 2 log(1/delta) only; read with c = 1, epsilon = 1 is 3.6.
    """
    return dpsgda_theorem_1(lipschitz, n, iterations, epsilon, delta, constant)


def gaussian_proposition_3(sensitivity: float, epsilon: float, delta: float) -> float:
    """Noise s sqrt(2 log(1/delta)) / epsilon. Source: nseg and nispp, Proposition 3.

    No theorem as stated: the classical lemma has 1.25/delta and epsilon <= 1. True up to epsilon =
    7.97 at delta = 1e-5, false beyond, and 29 % too much at epsilon = 1.
    """
    log = _log(delta, sensitivity=sensitivity, epsilon=epsilon)
    return float(sensitivity * math.sqrt(2 * log) / epsilon)


def nseg_proposition_5(bound: float, batch: int, epsilon: float, delta: float) -> float:
    """sqrt(8 log(1/delta)) M / (B epsilon). Source: nseg, Proposition 5 (single pass).

    Proposition 3 at the sensitivity 2 M / B. It needs all 2 T batches disjoint, also the two of one
    iteration, which the statement omits.
    """
    _log(delta, bound=bound, batch=batch)
    return gaussian_proposition_3(2 * bound / batch, epsilon, delta)


def nseg_proposition_7(bound: float, epsilon: float, delta: float) -> float:
    """sqrt(8 log(1/delta)) M / epsilon. Source: nseg, Proposition 7 (n^2 iterations, batch 1).

    Pays for n^2 releases while the algorithm makes two an iteration, 2 n^2. The transcript of a
    legal instance is not (1, 1e-5)-private, nor is it at epsilon = 0.4.
    """
    _log(delta, bound=bound)
    return gaussian_proposition_3(2 * bound, epsilon, delta)


def nispp_proposition_9(bound: float, modulus: float, batch: int) -> float:
    """Sensitivity 4 M / (lambda B) of a proximal step. Source: nispp, Proposition 9.

    True if the inner accuracy is certified, every record's operator is monotone and no record is
    twice in a batch; operators clipped to M need not be monotone. Not tight: 2 M / (lambda B) plus
    twice a certified distance is enough.
    """
    _log(0.5, bound=bound, modulus=modulus, batch=batch)
    return float(4 * bound / (modulus * batch))


def nispp_proposition_10(bound: float, modulus: float, batch: int, epsilon: float,
                         delta: float) -> float:
    """sqrt(32 log(1/delta)) M / (lambda B epsilon). Source: nispp, Proposition 10 (single pass).

    Right for disjoint batches where Propositions 3 and 9 are; 2.5 times the noise that a certified
    solver needs at epsilon = 1.
    """
    return gaussian_proposition_3(nispp_proposition_9(bound, modulus, batch), epsilon, delta)


def nispp_corollary_2(bound: float, modulus: float, batch: int, epsilon: float,
                      delta: float) -> float:
    """sqrt(32 log(1/delta) / (B lambda)) M / epsilon. Source: nispp, Corollary 2.

    Powers of B and lambda are lost, and the units are wrong: sqrt(B lambda) times Proposition 10,
    so not private where B lambda is small, which is a matter of units.
    """
    right = nispp_proposition_10(bound, modulus, batch, epsilon, delta)
    return float(right * math.sqrt(batch * modulus))


def nispp_theorem_7(bound: float, modulus: float, batch: int, epsilon: float,
                    delta: float) -> float:
    """8 M sqrt(log(1/delta)) / (B lambda epsilon). Source: nispp, Theorem 7 (several passes).

    Rests on a moments accountant for Poisson samples with an unspecified constant, while batches
    are subsets. Valid up to epsilon = 5.7 at delta = 1e-5, by luck, and 3.3 times too much at 1.
    """
    return math.sqrt(2.0) * nispp_proposition_10(bound, modulus, batch, epsilon, delta)


def recursive_theorem_12(lipschitz: float, modulus: float, n: int, t: int, epsilon: float,
                         delta: float) -> float:
    """8 L sqrt(log(2/delta)) / (2^t lambda n' epsilon). Source: recursive, Theorem 12, round t.

    n' counts the round's records. The proof takes 2 Delta where its own radius gives 3 and spends
    1.3 delta, which the 6 to 9 times too large noise pays for; but the solver's accuracy is asked
    for in the mean only, which no run can certify.
    """
    checks.number("delta", delta, low=0.0, high=1.0)
    log = _log(delta / 2, lipschitz=lipschitz, modulus=modulus, n=n, t=t, epsilon=epsilon)
    return float(8 * lipschitz * math.sqrt(log) / (2.0**t * modulus * n * epsilon))


def recursive_theorem_21(lipschitz: float, n: int, iterations: int, epsilon: float, delta: float,
                         constant: float) -> float:
    """sqrt(c_0 T log(1/delta)) L / (n epsilon). Source: recursive, Theorem 21 (noisy SGDA).

    c_0 is a "universal constant" without a value: the listing's draws with replacement need between
    about 6 and 16. The batch n sqrt(epsilon / (4 T)) misses the cited theorem's condition by 4.
    """
    log = _log(delta, lipschitz=lipschitz, n=n, iterations=iterations, epsilon=epsilon,
               constant=constant)
    return float(lipschitz * math.sqrt(constant * iterations * log) / (n * epsilon))


def recursive_local(lipschitz: float, epsilon: float, delta: float) -> float:
    """L sqrt(log(1/delta)) / epsilon. Source: recursive, appendix A.2, Corollary 16 (one pass).

    The sensitivity of one record's operator is 2 L, not L, and the Gaussian's sqrt(2) is missing:
    the noise is 2.2 times too small at epsilon = 1. (The covariance is printed with sigma, not
    sigma^2.)
    """
    log = _log(delta, lipschitz=lipschitz, epsilon=epsilon)
    return float(lipschitz * math.sqrt(log) / epsilon)


def phased_erm_theorem_2(scale: float, n: int, step: float, t: int, epsilon: float,
                         delta: float) -> float:
    """6 D sqrt(2 log2(n) log(1/delta) eta eta_t) / epsilon. Source: worst_group, Theorem 2.

    In phase t, with eta_t = eta / 2^t, n a group's records and D = max(L, B). Printed as a
    covariance, it must be a standard deviation; the solver must meet its accuracy surely, for both
    data sets. 13 to 28 times what a certified solver needs; its Gaussian constant, that of
    Proposition 3 of nseg, fails above epsilon = 8.35 at delta = 1e-6.
    """
    log = _log(delta, scale=scale, n=n, step=step, t=t, epsilon=epsilon)
    return float(6 * scale * math.sqrt(2 * math.log2(n) * log * 2.0**-t) * step / epsilon)


def worst_group_laplace(loss_bound: float, n: int, iterations: int, epsilon: float, delta: float,
                        constant: float) -> float:
    """Scale c B sqrt(T log(1/delta)) / (n epsilon). Source: worst_group, Theorems 9 and 13, tau.

    n counts a group's records. c is never given: 8, which the utility proof uses, spends 0.13 of an
    epsilon of 1, and 1 spends 1.1 of it.
    """
    _log(delta, loss_bound=loss_bound, constant=constant)
    return recursive_theorem_21(loss_bound, n, iterations, epsilon, delta, constant**2)


def mgr_theorem_9(lipschitz: float, n: int, iterations: int, epsilon: float, delta: float,
                  constant: float) -> float:
    """sqrt(c T log(T/delta) log(1/delta)) L / (n epsilon). Source: worst_group, Theorem 9 (MGR).

    n counts a group's records; c is never given. The batch size is missing: with batches of 1 a
    legal instance attains epsilon = 46 where 1 is claimed. Multiplicities of draws with replacement
    are ignored.
    """
    return _subsampled(lipschitz, n, iterations, epsilon, delta, constant, iterations)


def ags_theorem_13(lipschitz: float, n: int, groups: int, iterations: int, epsilon: float,
                   delta: float, constant: float) -> float:
    """sqrt(c T log(K/delta) log(1/delta)) L / (n epsilon). Source: worst_group, Theorem 13 (AGS).

    n counts a group's records, K = n p all of them. As Theorem 9, and without a proof.
    """
    _log(delta, n=n, groups=groups)
    return _subsampled(lipschitz, n, iterations, epsilon, delta, constant, n * groups)


def _subsampled(lipschitz: float, n: int, iterations: int, epsilon: float, delta: float,
                constant: float, inside: int) -> float:
    plain = recursive_theorem_21(lipschitz, n, iterations, epsilon, delta, constant)
    return plain * math.sqrt(math.log(inside) - math.log(concrete(delta)))
