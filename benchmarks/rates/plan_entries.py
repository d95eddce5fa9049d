"""The default plans of `benchmarks.rates.plans`, their problems, and ten alternatives to each.

Every alternative is public: multiples of a plan's rounds, steps, batches and regularisers.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.rates import descent, groups, recursive
from benchmarks.rates.base import DELTA, Job
from jaxminimax import Saddle, problems

P = 5  # groups
Maker = Callable[[int, float], Job]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One algorithm, and what its plan is compared with.

    Attributes:
      name: of the algorithm and the variant of its plan.
      plan: `(n, epsilon) -> Job`, with the default plan.
      others: ten makers of jobs, by what they change.
      few: `Job -> Job`, the same law on one or two records that stand for n, of a run that sees the
        records through means alone; None if it reads them.
    """

    name: str
    plan: Maker
    others: dict[str, Maker]
    few: Callable[[Job], Job] | None = None


def with_hyper(job: Job, epsilon: float, **changed: Any) -> Job:
    """The job with other settings, and the noise that they need for epsilon."""
    hyper = dataclasses.replace(job.hyper, **changed)
    return dataclasses.replace(job, hyper=jmm.calibrate(job.algorithm, hyper, epsilon, DELTA))


def altered(plan: Maker, rounds: float, step: float, batch: float, n: int, epsilon: float) -> Job:
    """The plan with other numbers of rounds, steps and batches, in multiples of its own.

    Disjoint batches stay one pass: their rounds follow from the batch. A proximal point has the
    inverse of its weight for a step.
    """
    job = plan(n, epsilon)
    hyper: Any = job.hyper
    changed: dict[str, Any] = {name: jax.tree.map(lambda x: step * x, getattr(hyper, name))
                               for name in ("step", "weight_step") if hasattr(hyper, name)}
    if hasattr(hyper, "modulus"):
        changed = {"modulus": hyper.modulus / step}
    if "iterations" in vars(hyper):
        changed["iterations"] = max(2, round(rounds * hyper.iterations))
    sampling = getattr(hyper.query, "sampling", None)
    match sampling:
        case jmm.Poisson(rate=rate):
            sampling = jmm.Poisson(rate=min(1.0, batch * rate))
        case jmm.FixedSize(batch=size):
            sampling = jmm.FixedSize(batch=min(n, max(1, round(batch * size))))
        case jmm.Disjoint(batch=size):
            size = min(n // 2, max(1, round(batch * size)))
            each = jmm.mechanism.releases(job.algorithm.mechanism(hyper)) // hyper.iterations
            changed["iterations"] = max(1, n // size // each)
            sampling = jmm.Disjoint(batch=size)
    if sampling is not None:
        changed["query"] = dataclasses.replace(hyper.query, sampling=sampling)
    if job.algorithm is jmm.proximal:
        changed["query"] = jmm.proximal.certified(dataclasses.replace(
            changed["query"], prox=hyper.query.prox / step))
    return with_hyper(job, epsilon, **changed)


def multiples(plan: Maker, *factors: tuple[float, float, float]) -> dict[str, Maker]:
    """Alternatives by factors of rounds, step and batch."""
    return {", ".join(f"{name} x {factor:g}" for name, factor in zip(
        ("rounds", "step", "batch"), one, strict=True) if factor != 1):
        functools.partial(altered, plan, *one) for one in factors}


FULL = ((1, 0.25, 1), (1, 0.5, 1), (1, 2, 1), (1, 4, 1), (0.25, 1, 1), (0.25, 2, 1), (0.25, 4, 1),
        (4, 0.5, 1), (4, 1, 1), (4, 2, 1))
SAMPLED = ((1, 2, 1), (0.25, 1, 1), (0.25, 2, 1), (0.25, 4, 1), (1 / 16, 1, 1), (1 / 16, 4, 1),
           (1 / 16, 16, 1), (1 / 16, 4, 4), (1 / 16, 16, 4), (1 / 16, 4, 16))
ONE_PASS = ((1, 0.25, 1), (1, 0.5, 1), (1, 2, 1), (1, 4, 1), (1, 8, 1), (1, 1, 0.25),
            (1, 0.5, 0.25), (1, 1, 4), (1, 2, 4), (1, 4, 4))
STEPS = tuple((1, 2.0**k, 1) for k in (-4, -3, -2, -1, 1, 2, 3, 4, 5, 6))


def small_game(algorithm: Any, **numbers: Any) -> Maker:
    """The bilinear game on small balls, its solution inside, by the algorithm's plan."""
    def job(n: int, epsilon: float, **more: Any) -> Job:
        public = {**recursive.SMALL_NUMBERS, **numbers, **more}
        plan = jmm.plan(algorithm, population=n, epsilon=epsilon, **{
            name: value for name, value in public.items() if value is not None})
        return Job(algorithm, plan.hyper, recursive.SMALL, recursive.SMALL_START,
                   recursive.small_sample(n), recursive.small_gap)

    return job


def quadratic_game(n: int, epsilon: float) -> Job:
    """The strongly monotone game of `rates`, by the plan of gda."""
    job = descent.gda_job(n, epsilon)
    clip = job.hyper.query.clip.w
    plan = jmm.plan(jmm.gda, population=n, epsilon=epsilon, delta=DELTA, bound=clip * math.sqrt(2),
                    smooth=math.hypot(1.0, 0.5), modulus=1.0)
    return dataclasses.replace(job, hyper=plan.hyper)


# --- five groups around a point off the centre of W, to which strong noise alone would lead ---

_MEANS = groups.corners(P, 0.25)
_WIDTH = 0.3
_LINEAR = problems.worst_group(lambda w, z: 1 - jnp.vdot(w, z), problems.ball(1.0), lipschitz=1.0,
                               bound=2.0, smooth=1e-3, convex=True)


def _pairs(key: jax.Array, count: int = 1) -> jax.Array:
    """Pairs of records of each group, whose mean and squared length are those of the population."""
    x = jax.random.normal(key, (P, count, groups.GROUPS_DIM), jnp.float32)
    x = _WIDTH * x / jnp.linalg.norm(x, axis=2, keepdims=True)
    return jnp.asarray(_MEANS, jnp.float32)[:, None] + jnp.concatenate([x, -x], 1)


def _near_excess(z: Saddle) -> jax.Array:
    return jnp.max(jnp.sum((z.w - jnp.asarray(_MEANS, z.w.dtype)) ** 2, 1)) / 2 - 0.25**2 / 2


def _linear_excess(z: Saddle) -> jax.Array:
    """Excess of max_i -<w, m_i> over -0.3, which the direction of the groups' centre has."""
    return 0.3 - jnp.min(jnp.asarray(_MEANS, z.w.dtype) @ z.w)


def in_groups(algorithm: Any, linear: bool, n: int, epsilon: float) -> Job:
    """Points near five groups, or linear losses of them, by the algorithm's plan."""
    problem = _LINEAR if linear else groups.NEAR
    plan = jmm.plan(algorithm, problem=problem, sizes=(n // P,) * P, dim=groups.GROUPS_DIM,
                    epsilon=epsilon, delta=DELTA)
    start = Saddle(jnp.zeros(groups.GROUPS_DIM, jnp.float32), ())
    return Job(algorithm, plan.hyper, problem, start, _pairs,
               _linear_excess if linear else _near_excess)


def online(linear: bool, n: int, epsilon: float) -> Job:
    """Points near two groups, or linear losses of five, that are read once."""
    if not linear:
        return groups.oco_job(n, epsilon, paper=False)
    return dataclasses.replace(in_groups(jmm.group_oco, True, n, epsilon),
                               sample=functools.partial(_pairs, count=n // P // 2))


def phased(n: int, epsilon: float, eta: float = 1.0, phases: float = 1.0) -> Job:
    """Certified phases, with multiples of the plan's step and number of phases."""
    job = groups.phased_job(n, epsilon)
    if (eta, phases) == (1.0, 1.0):
        return job
    numbers: Any = dict(problem=groups.NEAR, sizes=(n // P,) * P, dim=groups.GROUPS_DIM)
    own = job.hyper.query
    step = 2 / (own.reg_w * (n // P // own.phases))
    plan = jmm.plan(jmm.phased_erm, **numbers, epsilon=epsilon, delta=DELTA, eta=eta * step,
                    phases=max(1, round(phases * own.phases)))
    return dataclasses.replace(job, hyper=plan.hyper)


def balanced(like: Maker, n: int, epsilon: float) -> Job:
    """Balanced groups, then minimax, on the problem of another job: 300 rounds on all records."""
    job, rounds = like(n, epsilon), 300
    hyper: Any = job.hyper
    sizes = hyper.sizes if hasattr(hyper, "sizes") else hyper.query.sizes
    query = jmm.GroupGradients(clip=groups.NEAR.lipschitz, sizes=sizes, groups="all")
    losses = jmm.GroupLosses(bound=groups.NEAR.bound, sizes=sizes)
    hyper = jmm.calibrate(jmm.balanced_groups, jmm.balanced_groups.Hyper(
        query=query, losses=losses, step=1.0, weight_step=1.0, iterations=rounds), epsilon, DELTA)
    all_read = dataclasses.replace(hyper.query, noise_multiplier=hyper.query.noise_multiplier / len(
        sizes))  # that of a release with balanced weights, in units of the smallest group's
    step = jmm.group_sgd.gradient_step(all_read, rounds, dim=groups.GROUPS_DIM,
                                       diameter=groups.NEAR.diameter)
    return dataclasses.replace(job, algorithm=jmm.balanced_groups, hyper=dataclasses.replace(
        hyper, step=step, weight_step=jmm.group_sgd.weight_step(hyper.losses, rounds)))


def changes(plan: Callable[..., Job], settings: Sequence[dict[str, Any]]) -> dict[str, Maker]:
    """Alternatives by other numbers for the plan."""
    return {", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                      for k, v in one.items()): functools.partial(plan, **one) for one in settings}


def _recursive(name: str, plan: Callable[..., Job]) -> Entry:
    return Entry(name, plan, changes(plan, [
        *({"rounds": t} for t in (1, 2, 3, 4, 5)),
        *({"mode": "manual", "kappa": k} for k in (0.5, 2.0)),
        *({"mode": "manual", "kappa": k, "rounds": t} for k, t in ((0.5, 1), (2.0, 1), (2.0, 3)))]))


# --- few records for many ---


def quieter(query: Any, rows: int) -> Any:
    """The description on so many records, of each group or of all, with the noise of n of them."""
    if hasattr(query, "anchor"):
        return dataclasses.replace(query, anchor=quieter(query.anchor, rows),
                                   difference=quieter(query.difference, rows))
    grouped = hasattr(query, "sizes")
    share = rows / (min(query.sizes) if grouped else query.population)
    size = {"sizes": (rows,) * P} if grouped else {"population": rows}
    exact = {"exact": False} if isinstance(query, jmm.Query) else {}
    return dataclasses.replace(query, **size, **exact, noise_multiplier=jax.tree.map(
        lambda z: z * share, query.noise_multiplier))


def two_of_each(job: Job) -> Job:
    """The job on two records of each group."""
    hyper: Any = job.hyper
    return dataclasses.replace(job, hyper=dataclasses.replace(
        hyper, query=quieter(hyper.query, 2), losses=quieter(hyper.losses, 2)))


def mean_of(mean: Any, width: float) -> Callable[[Job], Job]:
    """The job on one record, which has the law of the mean of n: normal, by the limit theorem."""
    def few(job: Job) -> Job:
        query: Any = getattr(job.hyper.query, "anchor", job.hyper.query)
        deviation = width / math.sqrt(query.population * mean[0].shape[1])

        def sample(key: jax.Array) -> Any:
            keys = jax.random.split(key)
            return tuple(m + deviation * jax.random.normal(k, m.shape, m.dtype)
                         for m, k in zip(mean, keys, strict=True))

        return dataclasses.replace(job, sample=sample, hyper=dataclasses.replace(
            job.hyper, query=quieter(job.hyper.query, 1)))

    return few


def entries() -> list[Entry]:
    """All algorithms that have a plan, with ten alternatives each; and two with another algorithm.

    `phased_erm` and `group_oco` read a record once, `balanced_groups` reads it in every round.
    """
    small = mean_of(recursive.SMALL_MEAN, 0.5)
    simple: dict[str, tuple[Maker, tuple[tuple[float, float, float], ...], Any]] = {
        "gda": (quadratic_game, FULL, mean_of(descent.MEAN, 0.4)),
        "sgda, many passes": (small_game(jmm.sgda, dim=5, smooth=1.0, diameter=None), SAMPLED,
                              None),
        "sgda, one pass": (small_game(jmm.sgda, passes="one"), ONE_PASS, None),
        "extragradient, one pass": (small_game(jmm.extragradient, smooth=1.0), ONE_PASS, None),
        "extragradient, full batches": (
            small_game(jmm.extragradient, smooth=1.0, passes="full"), FULL, small),
        "optimistic": (small_game(jmm.optimistic, smooth=1.0, game="bilinear",
                                  radius=recursive.SMALL_RADIUS), FULL, small),
        "proximal, one pass": (small_game(jmm.proximal, smooth=1.0, smooth_difference=0.0),
                               ONE_PASS, None),  # records shift this game's operator
        "proximal, many passes": (small_game(jmm.proximal, smooth=1.0, passes="many"), SAMPLED,
                                  None),
        "ftrl": (small_game(jmm.ftrl), STEPS, None),
        "group_oco": (functools.partial(online, False), STEPS, None),
        "group_oco, linear losses": (functools.partial(online, True), STEPS, None),
    }
    for algorithm, name in ((jmm.group_sgd, "group_sgd"), (jmm.active_groups, "active_groups")):
        for linear, losses in ((False, ""), (True, ", linear losses")):
            simple[name + losses] = (functools.partial(in_groups, algorithm, linear), FULL,
                                     two_of_each)
    phases = [(e, 1.0) for e in (0.25, 0.5, 2.0, 4.0, 8.0)] + [(1.0, p) for p in (0.25, 0.5)] + [
        (4.0, 0.25), (4.0, 0.5), (16.0, 0.25)]
    against = [Entry(f"{name} over balanced_groups", plan, {
        "balanced_groups": functools.partial(balanced, plan)})
        for name, plan in (("phased_erm", phased), ("group_oco", functools.partial(online, False)))]
    return [*(Entry(name, plan, multiples(plan, *factors), few)
              for name, (plan, factors, few) in simple.items()),
            _recursive("recursive", recursive.recursive_job),
            _recursive("recursive_sgda", recursive.descent_job),
            Entry("phased_erm", phased, changes(phased, [dict(eta=e, phases=p)
                                                         for e, p in phases])), *against]
