"""What an attack attains of the epsilon that is claimed for algorithms that read groups.

Two groups, and a record of the first one is replaced. Its gradient and its loss are far beyond
their bounds, in opposite directions in the two data sets; the other losses make the first group the
worst one by far, so that almost every round reads it, and the second group is so large that its
noise hides little. The attack sees the path of the model and, where there are any, of the weights.
Of `balanced_groups` every round reads both groups, and the first one's records have all their
clip norm, for its weight over its size is the larger one.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from jaxminimax import GroupGradients, Saddle
from jaxminimax import audit as auditor
from jaxminimax.audit import linear
from jaxminimax.audit.released import likelihood_ratio
from jaxminimax.mechanism import group_batch_sizes
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.groups import in_group

SIZES = (20, 400)
CLIP, BOUND, WEIGHT_STEP = 0.5, 2.0, 3.0
_GIANT = 1e3
_MEASURED = 4000  # runs that signals are measured on
_AHEAD = 1.5  # scales of Gumbel noise


def _gradient(z: Saddle, record: Any) -> Saddle:
    first = jnp.all(z.w == 0)  # the other way at first: noise shared by rounds cancels and shows
    return Saddle(jnp.where(first, -1.0, 1.0).astype(z.w.dtype) * record["gradient"], ())


PROBLEM = jmm.GroupProblem(
    loss=lambda w, record: record["loss"], operator=_gradient, project=lambda w: w,
    diameter=math.inf, lipschitz=math.inf, bound=math.inf)


def hyper_of(algorithm: Any, sampling: Any, rounds: int, noise: str = "laplace",
             clips: str = "equal") -> Any:
    """Not calibrated; `noise` is that of the losses, where not their index alone is released."""
    query = GroupGradients(clip=CLIP, sampling=sampling, sizes=SIZES)
    hyper = algorithm.example(query, rounds, losses_noise=(
        None if algorithm is jmm.active_groups else noise))
    more = {"weight_step": WEIGHT_STEP} if hasattr(hyper, "weight_step") else {}
    return dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, clips=clips),
                               losses=dataclasses.replace(hyper.losses, bound=BOUND), **more)


def worst_pair(sampling: Any) -> dict[str, jax.Array]:
    """The two data sets, leaves `[2, p, n_max, ...]`."""
    p, n = len(SIZES), max(SIZES)
    gradient = np.zeros((2, p, n, 2), np.float32)
    loss = np.zeros((2, p, n), np.float32)
    # as in the library's audit: the others pull the other way where samples have a fixed size
    gradient[:, 0, :, 0] = -1.0 if sampling.worst_case(SIZES[0]).slots else 0.0
    gradient[:, 0, 0, 0] = (1.0, -1.0)
    gradient[:, 1, :, 1] = 1.0  # tells which group was read
    loss[:, 0] = 1.0
    loss[:, 0, 0] = (1.0, -1.0)
    return {"gradient": jnp.asarray(_GIANT * CLIP * gradient),
            "loss": jnp.asarray(_GIANT * BOUND * loss)}


def paths(key: jax.Array, algorithm: Any, hyper: Any, runs: int) -> list[Saddle]:
    """Models `[runs, rounds, 2]` and log weights `[runs, rounds, p]` on each data set."""
    start = Saddle(jnp.zeros(2, jnp.float32), ())

    @jax.jit
    def all_of(keys: jax.Array, data: Any) -> Saddle:
        def one(key: jax.Array) -> Saddle:
            return jmm.run(key, start, data, hyper, algorithm, PROBLEM, lambda s: s.z)[1]

        return jax.lax.map(lambda several: jax.lax.map(one, several), keys)

    keys = jax.random.split(key, (2, -(-runs // 500), 500))
    pair = worst_pair(hyper.query.sampling)
    result = [jax.device_get(all_of(keys[i], jax.tree.map(lambda x, i=i: x[i], pair)))
              for i in range(2)]
    return [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:runs].astype(np.float64), x)
            for x in result]


def scores(path: Saddle, algorithm: Any, hyper: Any) -> dict[str, np.ndarray]:
    """What tells the two data sets apart: statistics of the runs, `[runs]`, by name.

    The log-likelihood ratio of the described mechanism, and the released losses themselves, which
    show what the description bounds.
    """
    query = in_group(hyper.query, sum(SIZES) if hyper.query.groups == "all" else SIZES[0])
    z = concrete(hyper.query.noise_multiplier)
    moved = -np.diff(path.w, axis=1, prepend=0.0)
    moved[:, 0] *= -1
    if hyper.query.groups == "all":  # released s times what is clipped and gets noise
        before = np.concatenate([np.full_like(path.v[:, :1], -math.log(len(SIZES))),
                                 path.v[:, :-1]], 1)
        s = (np.max(np.exp(before) / np.array(SIZES), -1) if hyper.query.clips == "equal" else
             np.full_like(before[..., 0], 1 / (len(SIZES) * min(SIZES))))
        first = moved[..., 0] / (s * CLIP)
        total = likelihood_ratio(first[..., None, None], query, "replace_one")
        return {"likelihood ratio": total + _of_losses(path, hyper)[0],
                "losses": _of_losses(path, hyper)[1]}
    size, other = (group_batch_sizes(hyper.query)[i] for i in (0, 1))
    # the second group's gradient is (0, C) with noise of its own, little where all of it was read
    near = min(6 * z / other, 0.2)
    elsewhere = abs(np.abs(moved[..., 1]) / CLIP - 1) < near if 2 * z < other else False
    first = np.where(elsewhere, np.nan, moved[..., 0] * size / CLIP)
    total = likelihood_ratio(first[..., None, None], query, "replace_one")
    if algorithm is jmm.active_groups:
        return {"likelihood ratio": total}
    ratio, sums = _of_losses(path, hyper)
    return {"likelihood ratio": total + ratio, "losses": sums}


def _of_losses(path: Saddle, hyper: Any) -> tuple[np.ndarray, np.ndarray]:
    """The log-likelihood ratio of the released losses, and their sums, `[runs]`."""
    gap = path.v[..., 0] - path.v[..., 1]
    n, z = SIZES[0], concrete(hyper.losses.noise_multiplier)
    x = np.diff(gap, axis=1, prepend=0.0) * n / (WEIGHT_STEP * BOUND)
    if hyper.losses.gaussian:
        ratio = np.sum((x - (n - 1)) ** 2 - (x - n) ** 2, 1) / (2 * z**2)
    else:
        ratio = np.sum(abs(x - (n - 1)) - abs(x - n), 1) / z
    return ratio, np.sum(x, 1)


def signals(key: jax.Array, algorithm: Any, hyper: Any, *, runs: int, mechanism: Any = None,
            confidence: float = 0.999, only: str | None = None) -> dict[str, auditor.Signal]:
    """The signals of the gradients and of the losses, by name; see `jaxminimax.audit.signal`.

    "gradients", and "losses" or, of `active_groups`, "largest loss".

    Args:
      key: for all the runs.
      algorithm: `group_sgd`, `active_groups` or `balanced_groups`.
      hyper: from `hyper_of`, with noise multipliers.
      runs: of each.
      mechanism: what is charged; None: the hyper's own.
      confidence: of the bounds.
      only: the name of the one that is wanted; None: all.
    """
    made = algorithm.mechanism(hyper) if mechanism is None else mechanism
    start, data = Saddle(jnp.zeros(2, jnp.float32), ()), worst_pair(hyper.query.sampling)
    how: dict[str, Any] = dict(mechanism=made, runs=runs, confidence=confidence)
    n = SIZES[0]  # of both groups: a gradient's noise is then the same whichever is read
    equal = dataclasses.replace(
        hyper, query=dataclasses.replace(hyper.query, sizes=(n, n)),
        losses=dataclasses.replace(hyper.losses, sizes=(n, n)))
    few = jax.tree.map(lambda x: x[:, :, :n], data)
    result, after_index = {}, int(algorithm is jmm.active_groups)
    if algorithm is jmm.balanced_groups:  # weights that move for sure, far from balanced ones
        equal = dataclasses.replace(hyper, losses=dataclasses.replace(
            hyper.losses, noise_multiplier=0.0))
        few = {**data, "loss": jnp.broadcast_to(data["loss"][:1], data["loss"].shape)}
        if only in (None, "gradients"):
            how["mechanism"] = made.parts[0]
    if only in (None, "gradients"):
        result["gradients"] = auditor.signal(key, algorithm, equal, start, few, PROBLEM,
                                             observe=lambda _, released: released[after_index],
                                             **how)
        how["mechanism"] = made
    if algorithm is jmm.active_groups and only in (None, "largest loss"):
        result["largest loss"] = largest_loss(key, hyper, made, runs=10 * runs,
                                              confidence=confidence)
    if algorithm is not jmm.active_groups and only in (None, "losses"):
        law = "gaussian" if hyper.losses.gaussian else "laplace"
        how["mechanism"] = made.parts[1]
        result["losses"] = auditor.signal(key, algorithm, hyper, start, data, PROBLEM, law=law,
                                          observe=lambda state, released: released[1] if
                                          algorithm is jmm.group_sgd else state.losses, **how)
    return result


def largest_loss(key: jax.Array, hyper: Any, mechanism: Any, *, runs: int,
                 confidence: float = 0.999) -> auditor.Signal:
    """The signal of the index of the larger of two noisy losses, from how often it is the first.

    The first group, the smaller one, is ahead by one and a half scales of the noise, give or take
    half of what the record moves it by: were the second group's noise of a scale of its own, a
    twentieth of the first one's, the odds would change by far more than those of a softmax.
    """
    n, losses = SIZES[0], hyper.losses
    ahead = _AHEAD * BOUND * concrete(losses.noise_multiplier)  # of the mean, times n
    others = (BOUND * (n - 1) / 2 + ahead) / (n - 1)
    loss = np.full((2, 2, max(SIZES)), BOUND / 2, np.float32)
    loss[:, 0] = others
    loss[:, 0, 0] = _GIANT, -_GIANT
    data = {"gradient": jnp.zeros((2, 2, max(SIZES), 2), jnp.float32), "loss": jnp.asarray(loss)}
    start = Saddle(jnp.zeros(2, jnp.float32), ())
    once = dataclasses.replace(hyper, iterations=1)

    @jax.jit
    def index(keys: jax.Array, data: Any) -> jax.Array:
        def one(key: jax.Array) -> jax.Array:
            return jnp.argmax(jmm.run(key, start, data, once, jmm.active_groups, PROBLEM)[0].z.v)

        return jax.lax.map(lambda several: jax.lax.map(one, several), keys)

    keys = jax.random.split(key, (2, -(-runs // 1000), 1000))
    seen = [index(keys[i], jax.tree.map(lambda x, i=i: x[i], data)) for i in range(2)]
    return auditor.index_signal(seen[0], seen[1], mechanism.parts[0], confidence)


def audit(key: jax.Array, algorithm: Any, hyper: Any, delta: float, *, runs: int,
          confidence: float = 0.999) -> auditor.Audit:
    """Attacks whole runs and compares with what the accountant claims; as `jaxminimax.audit`."""
    claimed = jmm.epsilon(algorithm.mechanism(hyper), delta)
    seen = paths(key, algorithm, hyper, runs)
    one, two = (scores(path, algorithm, hyper) for path in seen)
    # noise that rounds or players share shows in a statistic of its own
    one["linear"], two["linear"] = linear(seen[0], seen[1], runs // 2)
    value, name, hits, trials = auditor.lower_bound(one, two, delta, confidence)
    result = signals(key, algorithm, hyper, runs=min(runs, _MEASURED), confidence=confidence)
    worst = max(result.values(), key=lambda signal: (signal.violated, signal.low / signal.charged))
    return auditor.Audit(value, claimed, delta, confidence, "replace_one", "worst", name, runs,
                         hits, trials, worst)
