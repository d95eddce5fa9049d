"""The library on the workloads, through its public functions, with models that a user wrote."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.speed.throughput import cases
from benchmarks.speed.throughput import peer_jax as plain
from benchmarks.speed.throughput.cases import CLIP, NOISE, PRIOR, RADIUS, STEP, Case, Entry
from jaxminimax import Saddle

AGAIN = 0.2  # how likely a sample is drawn again, at most
SLICE = 1024  # rows of a slice that is not the library's choice


def query(sampling: Any, population: int, size: int = 0) -> jmm.Query:
    """Clip norms and noise of the workload, for so many numbers if that is above a million."""
    return jmm.Query(clip=Saddle(*CLIP), noise_multiplier=Saddle(*NOISE), sampling=sampling,
                     population=population, parameters=max(2**20, size))


def hyper(algorithm: Any, query: jmm.Query, steps: int) -> Any:
    """Of an algorithm that takes steps."""
    if algorithm is jmm.gda:
        return jmm.gda.Hyper(query=query, modulus=1.0, offset=20.0, iterations=steps)
    return algorithm.Hyper(query=query, step=Saddle(*STEP), iterations=steps)


def problem(case: Case) -> jmm.Problem:
    """The saddle problem of the workload's model."""
    return jmm.problems.auc(plain.SCORERS[case.model], prior=PRIOR, radius=Saddle(*RADIUS))


def in_slices(solved: jmm.Problem) -> jmm.Problem:
    """Of `SLICE` rows, by whole gradients."""
    return solved._replace(operator=jmm.types.with_strategy(solved.operator, "microbatch", SLICE))


def _start(case: Case) -> Saddle:
    return jmm.problems.auc_start(plain.point(case)["theta"])


def make(peer: str, case: Case, data: tuple[Any, ...], steps: int) -> Entry:
    """A run of `steps` rounds; each starts where the last one ended.

    Args:
      peer: "ours" draws rows with replacement, as the peers do; "ours, Poisson" and "ours,
        disjoint" sample differently; "ours, Poisson again" draws about every fifth sample again,
        and "ours, Poisson alone" also does its rows one by one and leaves out empty slots; "ours,
        slices" takes whole gradients of `SLICE` rows at a time; "ours, extragradient" makes two
        releases a round, and "ours, gda" reads every row.
      case: workload and batch.
      data: the resident rows.
      steps: rounds.
    """
    algorithm: Any = jmm.sgda
    sampling: Any = jmm.FixedSize(batch=case.batch, replacement=True)
    match peer:
        case "ours, Poisson":
            sampling = jmm.Poisson(rate=case.batch / case.n)
        case "ours, Poisson again" | "ours, Poisson alone":
            sampling = jmm.Poisson(rate=case.batch / case.n, again=AGAIN)
            # so that as many rows are drawn
            sampling = jmm.Poisson(rate=sampling.rate / (1 - sampling.not_drawn(case.n)),
                                   again=AGAIN)
        case "ours, disjoint":
            sampling = jmm.Disjoint(batch=case.batch)
        case "ours, extragradient":
            algorithm = jmm.extragradient
        case "ours, gda":
            algorithm, sampling = jmm.gda, jmm.Full()
    settings = hyper(algorithm, query(sampling, case.n, case.size), steps)
    solved = in_slices(problem(case)) if peer == "ours, slices" else problem(case)
    if peer == "ours, Poisson alone":
        solved = solved._replace(operator=jmm.types.with_strategy(
            solved.operator, "microbatch", 1, skip_empty=True))

    def whole(z: Saddle, _: Any, key: jax.Array, *data: jax.Array) -> tuple[Saddle, Any, Any]:
        state, _ = jmm.run(key, z, data, settings, algorithm, solved)
        return state.z, state.average, jax.random.fold_in(key, 1)

    z = _start(case)
    return plain.program(whole, (z, z, jax.random.key(0)), data, steps, _once(case, solved))


def _once(case: Case, solved: jmm.Problem) -> Callable[[np.ndarray, np.ndarray], dict[str, Any]]:
    def run(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        full = jmm.Query(clip=Saddle(*CLIP), noise_multiplier=Saddle(0.0, 0.0),
                         sampling=jmm.Full(), population=len(y))
        state, _ = jax.jit(functools.partial(
            jmm.run, hyper=hyper(jmm.sgda, full, 1), algorithm=jmm.sgda, problem=solved))(
                jax.random.key(0), _start(case), (jnp.asarray(x), jnp.asarray(y)))
        return cases.flat({**state.z.w, "v": state.z.v})

    return run
