"""Calibrated runs of AUC maximisation, many budgets and seeds in one program, and their scores."""

import collections
import dataclasses
import functools
import math
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import jaxminimax as jmm
from benchmarks.common import settings
from benchmarks.data_sets import data
from jaxminimax import Saddle, algorithms


def tanh_scorer(theta: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Two layers with tanh between them; parameters as those of `mlp_scorer`."""
    return jnp.tanh(x @ theta["W1"] + theta["b1"]) @ theta["W2"]


SCORERS: dict[str, Callable[..., jax.Array]] = {
    "linear": jmm.problems.linear_scorer, "mlp": jmm.problems.mlp_scorer, "tanh": tanh_scorer}
# those that release clipped sums over all of the data
ALGORITHMS = {name: module for name, module in algorithms.ALGORITHMS.items()
              if algorithms.described_by(module) is jmm.Query
              and not algorithms.takes(module, "parts")}


class Refused(Exception):
    """Bad input that only the data reveal."""


class Diverged(Exception):
    """A run ended in scores that are not finite."""


@dataclasses.dataclass(frozen=True)
class Lane:
    """One run for every seed, before it is run; epsilon infinite: without privacy."""

    epsilon: float
    delta: float
    hyper: Any
    problem: jmm.Problem
    settings: settings.Settings


@functools.cache  # one object a problem: it is hashed by identity
def problem(scorer: str, prior: float, radius: float, dual: str) -> jmm.Problem:
    """The AUC problem with one radius for both players."""
    return jmm.problems.auc(SCORERS[scorer], prior=prior, radius=Saddle(radius, radius), dual=dual)


@functools.cache  # optimisers are hashed by identity, too
def optimiser(momentum: float) -> Any:
    """Gradient descent, with heavy-ball momentum for the scorer if wanted; a and b have none."""
    if not momentum:
        return optax.sgd

    def make(step: Any) -> optax.GradientTransformation:
        moves = {"scorer": optax.sgd(step, momentum=momentum), "numbers": optax.sgd(step)}
        return optax.partition(moves, {"theta": "scorer", "a": "numbers", "b": "numbers"})

    return make


def lane(s: settings.Settings, algorithm: str, scorer: str, dataset: data.Dataset, epsilon: float,
         delta: float, neighbours: str = "replace_one", rate: float | None = None) -> Lane:
    """Problem and calibrated hyper-parameters of one epsilon; infinity: no noise.

    Raises:
        Refused: if no noise gives this epsilon and delta.
    """
    n = len(dataset.y_train)
    own = s.share is not None  # whether v moves by a gradient of its own
    noise = jmm.mechanism.budget_split(w=s.share) if s.share is not None else None
    if epsilon == math.inf:
        noise = Saddle(0.0, 0.0 if own else None)
    query = jmm.Query(clip=Saddle(s.clip, s.clip_v if own else None), noise_multiplier=noise,
                      population=n,
                      sampling=jmm.Full() if rate is None else jmm.Poisson(rate=rate))
    module = ALGORITHMS[algorithm]
    once = module.example(query, 1)
    # with two releases a round, half the rounds with steps twice as long
    each = jmm.mechanism.releases(module.mechanism(once))
    hyper = dataclasses.replace(once, iterations=-(-s.iterations // each),
                                averaging=jmm.averaging.Averaging(skip=s.skip))
    if hasattr(hyper, "modulus"):
        offset = s.iterations / 2  # so the steps fall to a third of the first one
        hyper = dataclasses.replace(hyper, modulus=1 / ((s.first_step or s.step) * offset),
                                    offset=offset)
    elif hasattr(hyper, "optimiser"):
        step = (jmm.schedules.Cosine(scale=s.step, rounds=float(s.iterations)) if s.cosine
                else s.step)
        hyper = dataclasses.replace(hyper, step=Saddle(step, s.step_v),
                                    optimiser=Saddle(optimiser(s.momentum), optax.sgd))
    else:
        hyper = dataclasses.replace(hyper, step=Saddle(*(
            each * x / (1 - s.momentum) for x in (s.step, s.step_v))))
    if epsilon < math.inf:
        try:
            hyper = jmm.calibrate(module, hyper, epsilon, delta,
                                  neighbours=neighbours)
        except ValueError as error:
            raise Refused(f"--epsilon {epsilon:g}, --delta {delta:g}: {error}") from error
    return Lane(epsilon, delta, hyper,
                problem(scorer, dataset.prior, s.radius, "ascent" if own else "best_response"), s)


def start(scorer: str, s: settings.Settings, dim: int, seed: int) -> Saddle:
    """The initial point: zero for the linear scorer, random weights for the others."""
    if scorer == "linear":
        return jmm.problems.auc_start(jnp.zeros(dim, jnp.float32))
    theta = jmm.problems.mlp_init(jax.random.key(seed), dim, s.hidden, scale=s.scale)
    theta["W1"] = theta["W1"] / s.norm
    return jmm.problems.auc_start(jax.tree.map(lambda x: x.astype(jnp.float32), theta))


def key(seed: int, label: str, *budget: float) -> jax.Array:
    """A key for every run: the difference of two runs with the same noise would give data away."""
    made = jax.random.fold_in(jax.random.key(seed), zlib.crc32(label.encode()))
    for number in budget:
        made = jax.random.fold_in(made, np.float32(number).view(np.uint32))
    return made


def groups(lanes: Sequence[Lane]) -> list[list[int]]:
    """Lanes that one compiled program can run together, by number."""
    result = collections.defaultdict(list)
    for i, one in enumerate(lanes):
        s, alike = one.settings, jax.tree.structure(one.hyper)
        result[alike, one.problem, s.hidden, s.norm, s.scale].append(i)
    return list(result.values())


@dataclasses.dataclass
class Result:
    """What `measure` finds, by lane.

    Attributes:
        auc: Of the averaged point, `[test][seed]`.
        last: Of the last point, likewise.
        seconds: Of all seeds; a program's time is shared out by rounds.
        state: The first seed's.
        compile_seconds: Of everything.
    """

    auc: list[list[list[float]]]
    last: list[list[list[float]]]
    seconds: list[float]
    state: list[Any]
    compile_seconds: float = 0.0


Tests = Sequence[tuple[np.ndarray, np.ndarray]]


def runs_at_once(read: int) -> int | None:
    """How many runs to make at a time on a processor, if a round reads `read` bytes.

    What one run works on may stay in the caches, and what many do does not; but rows that do not
    fit anyway are better read once for all runs.
    """
    return 1 if jax.default_backend() == "cpu" and read < 2**24 else None


def measure(algorithm: str, scorer: str, lanes: Sequence[Lane], label: str,
            sets: Iterable[tuple[data.Dataset, Tests, list[int]]], total: int) -> Result:
    """Runs every lane with every seed.

    Args:
        algorithm: In `ALGORITHMS`.
        scorer: In `SCORERS`.
        lanes: All with the same gain of the features.
        label: Of the runs, unlike that of any others on the same data: it goes into the keys.
        sets: Training data, test sets, and the seeds to run on them.
        total: Seeds, for the progress bar.

    Raises:
        Diverged: if the scores of a run are not finite.
    """
    sweep = jax.jit(jmm.sweep, static_argnames=("algorithm", "problem", "at_once"))
    score = jax.jit(lambda theta, x: jax.vmap(SCORERS[scorer], (None, 0))(theta, x))
    plan, programs = groups(lanes), {}
    gain = np.float32(lanes[0].settings.gain)
    result = Result([[] for _ in lanes], [[] for _ in lanes], [0.0] * len(lanes),
                    [None] * len(lanes))
    bar = tqdm(total=len(plan) * total, unit="run", desc="training", file=sys.stderr,
               disable=None, leave=False)
    for dataset, tests, seeds in sets:
        rows = (jnp.asarray(dataset.x_train * gain), jnp.asarray(dataset.y_train))
        held = [(jnp.asarray(x * gain), y) for x, y in tests]
        for number, members in enumerate(plan):
            one = lanes[members[0]]
            keys = jnp.stack([jnp.stack([key(seed, label, lanes[i].epsilon, lanes[i].delta)
                                         for seed in seeds]) for i in members])
            inputs = (keys, start(scorer, one.settings, rows[0].shape[1], seeds[0]), rows,
                      jmm.stack([lanes[i].hyper for i in members]))
            at_once = runs_at_once(int(one.hyper.query.sampling.rate * rows[0].nbytes
                                       if isinstance(one.hyper.query.sampling, jmm.Poisson)
                                       else rows[0].nbytes))
            clock = time.perf_counter()
            if number not in programs:
                programs[number] = sweep.lower(*inputs, algorithm=ALGORITHMS[algorithm],
                                               problem=one.problem, at_once=at_once).compile()
                result.compile_seconds += time.perf_counter() - clock
                clock = time.perf_counter()
            states, _ = jax.block_until_ready(programs[number](*inputs))
            seconds = time.perf_counter() - clock
            rounds = sum(lanes[i].hyper.iterations for i in members)
            for place, i in enumerate(members):
                result.seconds[i] += seconds * lanes[i].hyper.iterations / rounds
                for j, seed in enumerate(seeds):
                    state = jax.tree.map(lambda x, p=place, j=j: x[p, j], states)
                    result.state[i] = result.state[i] or state
                    for found, z in ((result.auc[i], state.average), (result.last[i], state.z)):
                        found.extend([] for _ in range(len(held) - len(found)))
                        for t, (x, y) in enumerate(held):
                            scores = score(z.w["theta"], x)
                            if not np.isfinite(scores).all():
                                raise Diverged(
                                    f"epsilon {lanes[i].epsilon:g}, seed {seed}: the scores are "
                                    "not finite, the run diverged; try fewer --iterations or "
                                    "a larger --batch")
                            found[t].append(jmm.metrics.auc(scores, y))
            bar.update(len(seeds))
    bar.close()
    return result
