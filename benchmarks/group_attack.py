"""What an attack attains of the epsilon that is claimed for algorithms that read groups.

Two groups, and a record of the first one is replaced. Its gradient and its loss are far beyond
their bounds, in opposite directions in the two data sets; the other losses make the first group the
worst one by far, so that almost every round reads it, and the second group is so large that its
noise hides little. The attack sees the path of the model and, where there are any, of the weights.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from jaxminimax import FixedSize, GroupGradients, GroupLosses, Saddle
from jaxminimax import audit as auditor
from jaxminimax import mechanism as words

SIZES = (20, 400)
CLIP, BOUND, WEIGHT_STEP = 0.5, 2.0, 3.0
_GIANT = 1e3


def _gradient(z: Saddle, record: Any) -> Saddle:
    first = jnp.all(z.w == 0)  # the other way at first: noise shared by rounds cancels and shows
    return Saddle(jnp.where(first, -1.0, 1.0).astype(z.w.dtype) * record["gradient"], ())


PROBLEM = jmm.GroupProblem(
    loss=lambda w, record: record["loss"], operator=_gradient, project=lambda w: w,
    diameter=math.inf, lipschitz=math.inf, bound=math.inf)


def hyper_of(algorithm: Any, sampling: Any, rounds: int) -> Any:
    """Not calibrated."""
    active = algorithm is jmm.active_groups
    query = GroupGradients(clip=CLIP, sampling=sampling, sizes=SIZES)
    losses = GroupLosses(bound=BOUND, sizes=SIZES, only_argmax=active)
    own = {} if active else {"weight_step": WEIGHT_STEP}
    return algorithm.Hyper(query=query, losses=losses, step=1.0, iterations=rounds, **own)


def worst_pair(sampling: Any) -> dict[str, jax.Array]:
    """The two data sets, leaves `[2, p, n_max, ...]`."""
    p, n = len(SIZES), max(SIZES)
    gradient = np.zeros((2, p, n, 2), np.float32)
    loss = np.zeros((2, p, n), np.float32)
    # as in the library's audit: the others pull the other way where samples have a fixed size
    gradient[:, 0, :, 0] = -1.0 if isinstance(sampling, FixedSize) else 0.0
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

        return jax.lax.map(jax.vmap(one), keys)

    keys = jax.random.split(key, (2, -(-runs // 500), 500))
    pair = worst_pair(hyper.query.sampling)
    found = [jax.device_get(all_of(keys[i], jax.tree.map(lambda x, i=i: x[i], pair)))
             for i in range(2)]
    return [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:runs].astype(np.float64), x)
            for x in found]


def scores(path: Saddle, algorithm: Any, hyper: Any) -> dict[str, np.ndarray]:
    """What tells the two data sets apart: statistics of the runs, `[runs]`, by name.

    The log-likelihood ratio of the described mechanism, and the released losses themselves, which
    show what the description bounds.
    """
    query = words.in_group(hyper.query, SIZES[0])
    z = words.concrete(hyper.query.noise_multiplier)
    moved = -np.diff(path.w, axis=1, prepend=0.0)
    moved[:, 0] *= -1
    size, other = (words.group_batch_sizes(hyper.query)[i] for i in (0, 1))
    # the second group's gradient is (0, C) with noise of its own, little where all of it was read
    near = min(6 * z / other, 0.2)
    elsewhere = abs(np.abs(moved[..., 1]) / CLIP - 1) < near if 2 * z < other else False
    first = np.where(elsewhere, np.nan, moved[..., 0] * size / CLIP)
    total = auditor.likelihood_ratio(first[..., None, None], query, "replace_one")
    if algorithm is jmm.active_groups:
        return {"likelihood ratio": total}
    gap = path.v[..., 0] - path.v[..., 1]
    n, laplace = SIZES[0], words.concrete(hyper.losses.noise_multiplier)
    x = np.diff(gap, axis=1, prepend=0.0) * n / (WEIGHT_STEP * BOUND)
    ratio = np.sum(abs(x - (n - 1)) - abs(x - n), 1) / laplace
    return {"likelihood ratio": total + ratio, "losses": np.sum(x, 1)}


def audit(key: jax.Array, algorithm: Any, hyper: Any, delta: float, *, runs: int,
          confidence: float = 0.999) -> auditor.Audit:
    """Attacks whole runs and compares with what the accountant claims; as `jaxminimax.audit`."""
    claimed = jmm.epsilon(algorithm.mechanism(hyper), delta)
    one, two = (scores(path, algorithm, hyper)
                for path in paths(key, algorithm, hyper, runs))
    value, name, hits, trials = auditor.lower_bound(one, two, delta, confidence)
    return auditor.Audit(value, claimed, delta, confidence, "replace_one", "worst", name, runs,
                         hits, trials)
