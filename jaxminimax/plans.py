"""Plans runs from public numbers, and calibrates them.

    plan(algorithm, epsilon=..., delta=..., population=..., ...) -> Plan

The keywords are those of the algorithm's own `plan`, which receives the accountant as an argument.
"""

import functools
import inspect
from typing import Any

from jaxminimax.accounting import calibrate, calibrate_noise
from jaxminimax.algorithms.planning import Plan, Target
from jaxminimax.base import arguments
from jaxminimax.base.types import Algorithm, HyperT
from jaxminimax.mechanism import Solution, composed


def plan(algorithm: Algorithm[HyperT, Any], *, epsilon: float | None, delta: float,
         neighbours: str = "replace_one", **numbers: Any) -> Plan[HyperT]:
    """Plans a run by an algorithm's theorem, with the noise that the privacy target needs.

        planned = jmm.plan(jmm.proximal, epsilon=1.0, delta=1e-6, population=n, dim=d, bound=M,
                           smooth=L, diameter=D, passes="many")
        state, _ = jmm.run(key, start, data, planned.hyper, jmm.proximal, problem)

    Args:
      algorithm: a module such as `sgda`.
      epsilon: epsilon of the privacy target; None for no noise and no privacy, if the algorithm's
        plan allows that.
      delta: delta of the privacy target.
      neighbours: the neighbouring relation of the privacy target.
      **numbers: public numbers, the keywords of `algorithm.plan`.

    Raises:
      ValueError: for an algorithm without a plan, numbers that are missing or unknown to it, or out
        of range.
      TypeError: for an object that is no algorithm.

    Examples:
        >>> planned = jmm.plan(jmm.gda, population=1000, bound=1.0, smooth=1.0, modulus=0.5,
        ...                    epsilon=1.0, delta=1e-6)
        >>> planned.hyper.iterations, jmm.epsilon(jmm.gda.mechanism(planned.hyper), 1e-6) <= 1
        (100, True)
    """
    arguments.algorithm(algorithm)
    name = getattr(algorithm, "__name__", "").split(".")[-1]
    if not hasattr(algorithm, "plan"):
        raise ValueError(f"{name} has no plan, because no theorem sets its numbers: make its Hyper "
                         "yourself, and calibrate it.")

    def noise(hyper: Any) -> Any:
        if epsilon is None:
            return composed.with_noise_of_all(hyper, 0.0)
        return calibrate(algorithm, hyper, epsilon, delta, neighbours=neighbours)

    target = Target(epsilon, delta, noise, functools.partial(gaussian_ratio, epsilon, delta))
    try:
        inspect.signature(algorithm.plan).bind(target, **numbers)
    except TypeError as error:
        names = list(inspect.signature(algorithm.plan).parameters)[1:]
        raise ValueError(f"plan({name}, ...): {error}. Its public numbers are {', '.join(names)}."
                         ) from error
    planned: Plan[HyperT] = algorithm.plan(target, **numbers)
    return planned


def gaussian_ratio(epsilon: float | None, delta: float) -> float:
    """Returns r, the ratio of noise to sensitivity of the exactly calibrated Gaussian mechanism."""
    if epsilon is None:
        return 0.0
    noisy = calibrate_noise(Solution(sensitivity=1.0, because="-"), epsilon, delta)
    return float(noisy.noise_multiplier)
