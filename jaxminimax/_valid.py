"""Descriptions that no run or charge should start from are refused, before any data are read."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxminimax import _check, group_solvers
from jaxminimax.mechanism import (
    Disjoint,
    FixedSize,
    Full,
    GroupGradients,
    GroupLosses,
    GroupSolution,
    Leaf,
    Mechanism,
    Parallel,
    Poisson,
    Query,
    RecordLosses,
    Repeat,
    Resolvent,
    Sequence,
    Solution,
    Tree,
    batch_lipschitz,
    batch_size,
    concrete,
    exact_sensitivity,
    in_group,
    modulus,
    on_part,
    phase_sizes,
    rounding,
    solution_rounding,
    solution_smooth,
    split,
)
from jaxminimax.solvers import certifying_steps

ASSUMES = ("monotone", "lipschitz")
_MOST_STEPS = 10**7


def check(mechanism: Mechanism) -> None:
    """Refuses a description that no run or charge should start from.

    Raises:
      ValueError: naming the value and the fix.
    """
    if isinstance(mechanism, Leaf):
        _check_grid(mechanism.query if isinstance(mechanism, Repeat) else mechanism)
    match mechanism:
        case Sequence(parts=parts) | Parallel(parts=parts):
            for part in parts:
                check(part)
        case Repeat(query=query, times=times, parts=parts):
            _check.count("parts", parts)
            _check_times("times (the number of releases)", times)
            _check_times("times (the number of releases)", times * parts)
            rows = parts * getattr(query, "population", 0)
            if parts > 1 and rows >= 2**31:
                raise ValueError(f"parts * population must be below 2**31, got {rows}: indices are "
                                 "32-bit.")
            if isinstance(query, GroupGradients):
                if parts > 1:
                    raise ValueError(f"parts must be 1 for gradients of groups, got {parts}.")
                _check_group_gradients(query)
                return
            _check_sampling(query)
            if isinstance(query, Resolvent):
                _check_resolvent(query, times, parts)
            else:
                _check_query(query)
        case GroupLosses():
            _check_times("times (the number of releases)", mechanism.times)
            _check_sizes(mechanism.sizes)
            _check.number("bound", mechanism.bound, low=1e-28, high=1e28, closed=True)
            _check_multiplier("noise_multiplier", mechanism.noise_multiplier)
        case Tree():
            _check_times("leaves", mechanism.leaves)
            _check.number("clip", mechanism.clip, low=1e-28, high=1e28, closed=True)
            _check_multiplier("noise_multiplier", mechanism.noise_multiplier)
        case GroupSolution():
            _check_group_solution(mechanism)
        case RecordLosses():
            _check_times("times (the number of releases)", mechanism.times)
            _check.number("bound", mechanism.bound, low=1e-28, high=1e28, closed=True)
            _check_multiplier("noise_multiplier", mechanism.noise_multiplier)
        case Solution():
            _check.number("sensitivity", mechanism.sensitivity, low=0.0)
            _check.number("slack", mechanism.slack, low=0.0, high=1e6, closed=True)
            _check_multiplier("noise_multiplier", mechanism.noise_multiplier)
            if not mechanism.because:
                raise ValueError("because must name the assumptions that the sensitivity rests on.")
        case other:
            raise ValueError("A mechanism is a Repeat, a Sequence or another description of "
                             f"jaxminimax.mechanism, got {type(other).__name__}; pass "
                             "algorithm.mechanism(hyper).")


def _check_grid(described: Any) -> None:
    """Refuses what no grid of a release can follow from."""
    exact, parameters = getattr(described, "exact", True), getattr(described, "parameters", 1)
    if not isinstance(exact, bool):
        raise ValueError(f"exact must be True or False, got {exact!r}.")
    _check.count("parameters", parameters)
    if parameters >= 2**31 - 32:
        raise ValueError(f"parameters must be below 2**31 - 32, got {parameters}: a release draws "
                         "its noise in one go.")


def _check_times(name: str, times: int) -> None:
    _check.count(name, times)
    if times >= 2**31:
        raise ValueError(f"{name} must be below 2**31, got {times}: the counter of releases has 32 "
                         "bits.")


def _check_multiplier(name: str, z: Any) -> None:
    if z is None:
        return
    _check.number(name, z, low=0.0, high=1e15, closed=True)
    if _is(z, lambda x: 0 < x < 1e-4):
        raise ValueError(f"{name} must be 0 (no privacy) or at least 1e-4, got {z!r}.")


def _check_sizes(sizes: Any) -> None:
    if not isinstance(sizes, tuple) or not sizes:
        raise ValueError("sizes must be a tuple of every group's number of records, got "
                         f"{sizes!r}: problems.by_group returns it.")
    for n in sizes:
        _check.count("sizes", n)


def _check_group_gradients(query: GroupGradients) -> None:
    _check_sizes(query.sizes)
    if isinstance(query.sampling, Disjoint):
        raise ValueError("sampling of a group must be Full(), Poisson(...) or FixedSize(...): "
                         "which group is read next is not known in advance, so there are no "
                         "passes.")
    for n in (min(query.sizes), max(query.sizes)):
        _check_sampling(in_group(query, n))
        _check_query(in_group(query, n))


def _check_sampling(query: Query | Resolvent) -> None:
    _check.count("population", query.population)
    n = query.population
    if n >= 2**30:
        raise ValueError(f"population must be below 2**30, got {n}: indices are 32-bit.")
    match query.sampling:
        case Full():
            pass
        case Poisson(rate=rate, capacity=capacity):
            _check.number("rate", rate, low=0.0, high=math.nextafter(1.0, 2.0))
            _check.number("rate * population", rate * n, low=1e-6)
            if capacity is not None:
                _check.count("capacity", capacity)
        case Disjoint(batch=batch) | FixedSize(batch=batch):
            _check.count("batch", batch)
            if batch > n and not getattr(query.sampling, "replacement", False):
                raise ValueError(f"batch must be at most population={n}, got {batch}.")
        case other:
            raise ValueError("sampling must be Full(), Poisson(rate=...), FixedSize(batch=...) or "
                             f"Disjoint(batch=...), got {other!r}.")


def _check_resolvent(query: Resolvent, times: int, parts: int) -> None:
    _check.one_of("assumes", query.assumes, ASSUMES)
    if query.doubling and parts > 60:
        raise ValueError(f"parts must be at most 60 where the proximal weight doubles, got "
                         f"{parts}.")
    for name in ("bound", "prox", "diameter"):
        _check.number(name, getattr(query, name), low=1e-12, high=1e12, closed=True)
    _check.number("lipschitz", query.lipschitz, low=0.0, high=1e12, closed=True)
    _check.number("slack", query.slack, low=1e-9, high=1e6, closed=True)
    _check_multiplier("noise_multiplier", query.noise_multiplier)
    numbers = (query.prox, query.lipschitz, query.diameter, query.bound, query.slack)
    if any(isinstance(x, jax.core.Tracer) or np.ndim(x) for x in numbers):
        return  # checked on the host, where the description is charged
    if not concrete(modulus(query)) >= 1e-3 * concrete(query.prox):
        raise ValueError(f"prox must exceed {concrete(batch_lipschitz(query)):.6g}, the Lipschitz "
                         f"constant of the largest batch, got {query.prox!r}: otherwise the "
                         "regularised problem need not be strongly monotone. Raise prox, give a "
                         "Poisson sample a capacity, or sanitise the records and use "
                         "assumes='monotone'.")
    if query.steps is not None:
        given = query.steps if isinstance(query.steps, tuple) else (query.steps,)
        needed = inner_steps(query, parts)
        needed = needed if isinstance(needed, tuple) else (needed,)
        for steps in given:
            _check.count("steps", steps)
        if len(given) != len(needed) or any(a < b for a, b in zip(given, needed, strict=True)):
            raise ValueError(f"steps must be at least {inner_steps(query, parts)}, got "
                             f"{query.steps}: fewer may fail to certify a solution, and a failure "
                             "shows. proximal.certified(query) sets them.")


def inner_steps(query: Resolvent, parts: int = 1) -> int | tuple[int, ...]:
    """Steps of the inner solver after which a solution's certificate cannot fail.

    One number; or one a part of the data, if the proximal weight doubles.
    """
    if query.doubling:
        return tuple(_steps(on_part(query, part)) for part in range(parts))
    return _steps(query)


def _steps(query: Resolvent) -> int:
    residual = concrete(query.slack) * concrete(query.bound) / batch_size(query)
    lost = concrete(rounding(query, concrete(query.diameter)))
    # half of the residual, for a quarter may be lost to rounding
    steps = certifying_steps(0.5 * residual, lipschitz=concrete(split(query)[1]),
                             prox=concrete(modulus(query)), distance=concrete(query.diameter))
    if lost > 0.25 * residual or steps > _MOST_STEPS:
        raise ValueError(
            f"slack={concrete(query.slack):g} asks for a residual of {residual:.3g}, where "
            f"rounding leaves {lost:.3g} and {steps} steps are needed of at most {_MOST_STEPS}: "
            "raise slack, or take fewer parts, another prox or smaller batches.")
    return steps


def _check_group_solution(query: GroupSolution) -> None:
    _check.count("phases", query.phases)
    if not query.sizes:
        raise ValueError("sizes must hold each group's number of records, got none.")
    for n in query.sizes:
        _check.count("sizes", n)
    if min(phase_sizes(query)) < 1:
        raise ValueError(f"phases must be at most {min(query.sizes)}, the smallest group's "
                         f"records, got {query.phases}.")
    if query.phases > 60:
        raise ValueError(f"phases must be at most 60, got {query.phases}: the weight of the "
                         "quadratic doubles in each.")
    for name in ("lipschitz", "bound", "diameter", "reg_w", "reg_lam"):
        _check.number(name, getattr(query, name), low=1e-12, high=1e12, closed=True)
    if query.smooth is not None:
        _check.number("smooth", query.smooth, low=0.0, high=1e12, closed=True)
    _check.number("slack", query.slack, low=0.0, high=1e6)
    _check_multiplier("noise_multiplier", query.noise_multiplier)
    if any(isinstance(x, jax.core.Tracer) or np.ndim(x) for x in (
            query.lipschitz, query.bound, query.diameter, query.reg_w, query.reg_lam, query.slack,
            0.0 if query.smooth is None else query.smooth)):
        return  # checked on the host, where the description is charged
    enough = solution_steps(query)
    if query.steps is not None:
        _check.count("steps", query.steps)
        if query.steps < enough:
            raise ValueError(f"steps must be at least {enough}, got {query.steps}: fewer may fail "
                             "to certify a solution, and a failure shows. "
                             "phased_erm.certified(query) sets them.")


def solution_steps(query: GroupSolution) -> int:
    """Steps of the inner solver after which no phase's certificate can fail.

    Raises:
      ValueError: for an accuracy that float64 or ten million steps may not reach.
    """
    most = 0
    for phase in range(query.phases):
        reg_w = concrete(query.reg_w) * 2.0**phase
        lipschitz, diameter = map(concrete, (query.lipschitz, query.diameter))
        distance = concrete(query.slack) * concrete(exact_sensitivity(query, reg_w))
        # half of the distance, for a quarter may be lost to rounding
        numbers = dict(modulus=reg_w, lipschitz=lipschitz, diameter=diameter)
        steps = (group_solvers.subgradient_steps(0.5 * distance, **numbers)
                 if query.smooth is None else group_solvers.accelerated_steps(
                     0.5 * distance, smooth=concrete(solution_smooth(query, reg_w)), **numbers))
        lost = concrete(solution_rounding(dataclasses.replace(query, steps=steps), reg_w, diameter))
        if lost > 0.25 * distance or steps > _MOST_STEPS:
            raise ValueError(
                f"slack={concrete(query.slack):g} asks for a solution within {distance:.3g} in "
                f"phase {phase + 1}, where rounding leaves {lost:.3g} and {steps} steps are "
                f"needed of at most {_MOST_STEPS}: raise slack or reg_w, take fewer phases, or "
                "smooth the loss.")
        most = max(most, steps)
    return most


def _check_query(query: Query) -> None:
    if query.clip.w is None and query.clip.v is None:
        raise ValueError("clip is None for both players: nothing would be released.")
    if query.joint and None in query.clip:
        raise ValueError(f"joint=True needs a clip norm for both players, got {query.clip!r}: "
                         "leave joint out where one player reads no data.")
    for name, clip in query.clip._asdict().items():
        if clip is not None:
            _check.number(f"clip.{name}", clip, low=1e-28, high=1e28, closed=True, infinite=True)
    if query.noise_multiplier is not None:
        for name, clip in query.clip._asdict().items():
            z = getattr(query.noise_multiplier, name)
            if (z is None) != (clip is None):
                raise ValueError(f"clip.{name} is {clip!r} but noise_multiplier.{name} is {z!r}: "
                                 "a player is released with both or with neither.")
            if z is not None:
                _check_multiplier(f"noise_multiplier.{name}", z)
                if _is(z, lambda x: x > 0) and _is(clip, math.isinf):
                    raise ValueError(f"clip.{name} is infinite, so no noise can cover it: give a "
                                     f"finite clip norm, or noise_multiplier.{name}=0.0.")


def _is(x: Any, true: Callable[[float], bool]) -> bool:
    return not isinstance(x, jax.core.Tracer) and np.ndim(x) == 0 and true(float(x))
