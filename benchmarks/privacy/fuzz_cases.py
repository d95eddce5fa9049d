"""Random descriptions of all kinds, and hostile values, for `benchmarks.privacy.fuzz`."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from jaxminimax import Saddle

Maker = Callable[[np.random.Generator], Any]

HOSTILE: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -1.0, -0.0, 0, 0.0, 0.5, 1, 1.0, 2.5, 5e-324, 1e-300, 1e-30,
    1e30, 1e308, 2**31, 2**70, -(2**70), True, False, None, "", "1", "nan", b"1", 1j, (), [], {},
    (1.0,), object(), np.float32(math.nan), np.float64(math.inf), np.int8(-3), np.array([1.0, 2.0]),
    np.array([]), np.array("x"), jnp.array(0.3), jnp.array([0.3, math.nan]), Saddle(1.0, 1.0),
    Saddle(math.nan, 1.0), Saddle(None, None), jmm.Full(), jmm.Poisson(rate=0.5), int, max,
)


def size(rng: np.random.Generator, low: float, high: float) -> int:
    """An integer, uniform in its logarithm."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def real(rng: np.random.Generator, low: float, high: float) -> float:
    """A number, uniform in its logarithm."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def noise(rng: np.random.Generator) -> float:
    """A multiplier: mostly ordinary, at times next to nothing, or enormous."""
    return real(rng, *((1e-4, 1e8) if rng.random() < 0.1 else (0.3, 100.0)))


def sampling(rng: np.random.Generator, n: int) -> Any:
    """One of all samplings, for that many records."""
    m = size(rng, 1, n)
    match int(rng.integers(5)):
        case 0:
            rate = min(1.0, real(rng, max(1e-6, 1 / n), 1.0))
            more = None if rng.random() < 0.8 else math.ceil(rate * n) + size(rng, 1, 100)
            return jmm.Poisson(rate=rate, capacity=more)
        case 1:
            return jmm.FixedSize(batch=m)
        case 2:
            return jmm.FixedSize(batch=min(m, 2000), replacement=True)
        case 3:
            return jmm.Disjoint(batch=m)
    return jmm.Full()


def query(rng: np.random.Generator) -> Any:
    """Clipped sums of one player or two."""
    n = size(rng, 1, 1e7)
    one = rng.random() < 0.5
    clip = Saddle(real(rng, 1e-3, 1e3), None if one else real(rng, 1e-3, 1e3))
    made = jmm.Query(
        clip=clip, noise_multiplier=Saddle(noise(rng), None if one else noise(rng)), population=n,
        sampling=sampling(rng, n), joint=not one and rng.random() < 0.3,
        parameters=size(rng, 1, 2**24), exact=bool(rng.random() < 0.8))
    if n % 4 or not made.exact:  # clip norms stay
        return made
    share = 0.5 / (1 + n % 100)
    return dataclasses.replace(made, adaptive=jmm.AdaptiveClip(share=share))


def resolvent(rng: np.random.Generator) -> Any:
    """Certified proximal points."""
    n = size(rng, 2, 1e5)
    prox = real(rng, 0.1, 100.0)
    return jmm.mechanism.Resolvent(
        bound=real(rng, 0.1, 10.0), prox=prox, lipschitz=prox * rng.uniform(0, 0.5),
        diameter=real(rng, 0.1, 10.0), noise_multiplier=noise(rng), population=n,
        sampling=sampling(rng, n), assumes=("monotone", "lipschitz")[int(rng.integers(2))])


def sizes(rng: np.random.Generator) -> tuple[int, ...]:
    """Records of several groups, at times all alike."""
    if rng.random() < 0.5:
        return (size(rng, 10, 1e5),) * int(rng.integers(1, 6))
    return tuple(size(rng, 10, 1e5) for _ in range(int(rng.integers(1, 6))))


def group_gradients(rng: np.random.Generator) -> Any:
    """Gradients of one group at a time, or of all groups at once."""
    groups = sizes(rng)
    made = jmm.GroupGradients(clip=1.0, noise_multiplier=noise(rng), sizes=groups,
                              sampling=sampling(rng, min(groups)))
    every = isinstance(made.sampling, jmm.Full) and min(groups) % 2
    return dataclasses.replace(made, groups="all") if every else made


def repeat(rng: np.random.Generator) -> Any:
    """One of them, repeated."""
    made = (query, query, resolvent, group_gradients)[int(rng.integers(4))](rng)
    parts = 1 if rng.random() < 0.8 else int(rng.integers(2, 5))
    return jmm.Repeat(query=made, times=size(rng, 1, 1e5), parts=parts)


def group_losses(rng: np.random.Generator) -> Any:
    """Losses of all groups."""
    return jmm.GroupLosses(bound=1.0, sizes=sizes(rng), noise_multiplier=noise(rng),
                           times=size(rng, 1, 1e4), only_argmax=bool(rng.random() < 0.5))


def record_losses(rng: np.random.Generator) -> Any:
    """Losses of single records."""
    return jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=noise(rng),
                                      times=size(rng, 1, 1e6))


def tree_sums(rng: np.random.Generator) -> Any:
    """All prefix sums of a pass."""
    return jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=noise(rng), leaves=size(rng, 1, 1e6))


def solution(rng: np.random.Generator) -> Any:
    """One certified solution."""
    return jmm.mechanism.Solution(sensitivity=real(rng, 1e-6, 1.0), slack=rng.uniform(0, 0.1),
                                  noise_multiplier=noise(rng), because="it is fuzzed")


def group_solution(rng: np.random.Generator) -> Any:
    """Certified solutions of the worst group."""
    return jmm.mechanism.GroupSolution(
        lipschitz=1.0, bound=1.0, smooth=1.0, diameter=1.0, reg_w=real(rng, 0.1, 10.0),
        reg_lam=real(rng, 0.1, 10.0), noise_multiplier=noise(rng), sizes=sizes(rng),
        phases=int(rng.integers(1, 6)))


def held_out_bound(rng: np.random.Generator) -> Any:
    """Bounds from records held out."""
    return jmm.mechanism.HeldOutBound(
        bound=real(rng, 0.1, 10.0), population=size(rng, 1, 1e5),
        noise_multiplier=noise(rng), times=size(rng, 1, 10))


LEAVES: dict[str, Maker] = {
    "Repeat": repeat, "GroupLosses": group_losses, "RecordLosses": record_losses,
    "TreeSums": tree_sums, "Solution": solution, "GroupSolution": group_solution,
    "HeldOutBound": held_out_bound}


def description(rng: np.random.Generator) -> Any:
    """A leaf, or several after each other or on disjoint data."""
    def leaf() -> Any:
        name = "Repeat" if rng.random() < 0.5 else rng.choice(sorted(LEAVES))
        return LEAVES[name](rng)

    kind = rng.random()
    if kind < 0.75:
        return leaf()
    parts = tuple(leaf() for _ in range(int(rng.integers(0, 4))))
    made = jmm.Sequence if kind < 0.9 else jmm.Parallel
    return made(parts=parts, in_turn=bool(rng.random() < 0.3))


def spoiled(rng: np.random.Generator, made: Any, with_: Any) -> Any:
    """`made` with one of its fields, or of those of its parts, replaced."""
    names = [field.name for field in dataclasses.fields(made)]
    if not names:
        return with_
    name = str(rng.choice(names))
    value = getattr(made, name)
    inside = (list(value) if isinstance(value, tuple) and value and not isinstance(value, Saddle)
              else [value])
    if dataclasses.is_dataclass(inside[0]) and rng.random() < 0.7:
        at = int(rng.integers(len(inside)))
        inside[at] = spoiled(rng, inside[at], with_)
        return dataclasses.replace(made, **{name: tuple(inside) if isinstance(value, tuple)
                                            else inside[0]})
    if isinstance(value, Saddle) and rng.random() < 0.7:
        return dataclasses.replace(made, **{name: value._replace(
            **{("w", "v")[int(rng.integers(2))]: with_})})
    return dataclasses.replace(made, **{name: with_})


def kinds_in(made: Any) -> set[str]:
    """Names of the classes that a description is made of."""
    if isinstance(made, tuple) and not isinstance(made, Saddle):
        return set().union(*map(kinds_in, made)) if made else set()
    if not dataclasses.is_dataclass(made) or isinstance(made, type):
        return set()
    values = (getattr(made, field.name) for field in dataclasses.fields(made))
    return {type(made).__name__}.union(*map(kinds_in, values))


def traced(ask: Callable[[Any], Any]) -> None:
    """Asks with a tracer, which has no value."""
    jax.make_jaxpr(lambda x: (ask(x), x)[1])(jnp.array(0.5))
