"""A planted bug of several steps of a player in one round, and what finds it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.algorithms import sgda

AIMS: dict[str, tuple[Any, str]] = {"charge of turns": (jmm.Sequence, "charges")}
STEPS, ROUNDS, N = 5, 4, 20
_PROBLEM = jmm.Problem(jmm.saddle_operator(lambda w, v, record: w @ record))


def one_is_charged(charges: Any) -> Any:
    """Of the steps of a round one is charged, and all are made."""
    def changed(self: Any, neighbours: str) -> Any:
        parts = tuple(dataclasses.replace(part, times=part.times // k)
                      for part, k in zip(self.parts, self.each, strict=True))
        return charges(dataclasses.replace(self, parts=parts or self.parts, each=()), neighbours)

    return changed


def charged() -> Finding:
    """The epsilon of all releases that a run makes over the one that is charged."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(10.0, None), population=N)
    hyper = sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=ROUNDS,
                       turns=Saddle(STEPS, 1))
    start, data = Saddle(jnp.zeros(2), jnp.zeros(2)), jnp.ones((N, 2))
    spent = int(jmm.run(jax.random.key(0), start, data, hyper, sgda, _PROBLEM).state.spent)
    every = jmm.Repeat(query=query, times=spent)
    return Finding(jmm.epsilon(every, 1e-6) / jmm.epsilon(sgda.mechanism(hyper), 1e-6), 1 + 1e-6)


BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("one step of several charged", "charge: steps of a round", "charge of turns",
     one_is_charged, charged, "epsilon of what was released over the one that is charged"),
)
