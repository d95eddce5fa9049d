"""Planted bugs of several steps of a player in one round, and what finds them."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.mutants import plants
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.algorithms import sgda
from jaxminimax.noise import floored_normal
from jaxminimax.releases import noisy_sums

AIMS: dict[str, tuple[Any, str]] = {"charge of turns": (jmm.Sequence, "charges"),
                                    "release of a turn": (sgda, "noisy_operator")}
STEPS, ROUNDS, N, DIM = 5, 4, 20, 4000
_PROBLEM = jmm.Problem(jmm.saddle_operator(lambda w, v, record: w @ record))


def one_is_charged(charges: Any) -> Any:
    """Of the steps of a round one is charged, and all are made."""
    def changed(self: jmm.Sequence, neighbours: str) -> Any:
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


def half_the_noise(release: Any) -> Any:
    """A release of one player's step has half the noise, and one of both players all of it."""
    def changed(*args: Any) -> Any:
        quiet = plants.quieter(0.5)(floored_normal)
        with mock.patch.object(noisy_sums, "floored_normal", quiet):
            return release(*args)

    return changed


def noise_of_turns() -> Finding:
    """The charged deviation of each player's noise in a round over the measured, the larger one.

    Records and so operators are zero: a round moves a player by its steps' noise alone.
    """
    clip, noise, turns = Saddle(1.0, 3.0), Saddle(10.0, 5.0), Saddle(2, 3)
    query = jmm.Query(clip=clip, noise_multiplier=noise, population=N)
    hyper = sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1, turns=turns)
    problem = jmm.Problem(jmm.saddle_operator(lambda w, v, record: record[0] * (w @ v)))
    start = Saddle(jnp.zeros(DIM), jnp.zeros(DIM))
    moved = jmm.run(jax.random.key(0), start, jnp.zeros((N, 1)), hyper, sgda, problem).state.z
    ratios = [c * z / N * k**0.5 / float(np.std(x)) for x, k, c, z in zip(
        moved, turns, clip, noise, strict=True)]
    return Finding(max(ratios), 1 + 5 / (2 * DIM) ** 0.5)  # five standard errors


BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("one step of several charged", "charge: steps of a round", "charge of turns",
     one_is_charged, charged, "epsilon of what was released over the one that is charged"),
    ("steps in turn with half the noise", "standard deviation of steps in turn",
     "release of a turn", half_the_noise, noise_of_turns,
     "charged deviation of a round's noise over the measured"),
)
