"""Attacks on certificates: how far a record that is held out moves them, and what that shows.

On the worst pair of data sets the record that differs has an operator, or a loss, at either end of
what clipping allows, and z lies at the edge of the set.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.drivers import certificates
from jaxminimax.releases import held_out
from jaxminimax.releases.groups import release_group_losses

DELTA = 1e-2
RECORDS = 8
SET = jmm.problems.product(jmm.problems.ball(1.0), jmm.problems.ball(1.0))


def _loss(w: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
    return (x[0] * w - x[1] * v)[0] + x[2]  # (x[0], x[1]) is the operator


GAME = jmm.problems.Bounded(
    jmm.Problem(jmm.saddle_operator(_loss), project=SET.project, support=SET.support),
    bound=1.0, smooth=0.0, diameter=SET.diameter)
LOSSES = jmm.problems.worst_group(lambda w, x: x[0], jmm.problems.ball(1.0), lipschitz=1.0,
                                  bound=1.0)
EDGE = Saddle(jnp.array([1.0]), jnp.array([-1.0]))
REACH = {"strong_gap": math.sqrt(2.0), "primal_risk": 1.0}


class Path(NamedTuple):
    """A kind of certificate, and the pair of data sets that it is attacked on.

    Attributes:
      described: its noise multiplier is set.
      released: `(key, data) -> []`, the number that a record moves most.
      data: the pair, leaves `[2, ...]`.
    """

    described: Any
    released: Any
    data: Any


def path(of: str, multiplier: float) -> Path:
    """The attack of a kind of certificate; records are far larger than clip norms."""
    if of == "worst_group":
        losses = jmm.GroupLosses(bound=1.0, sizes=(RECORDS,), noise_multiplier=multiplier,
                                 noise="gaussian")
        same = jnp.zeros((RECORDS, 1))
        return Path(losses, lambda key, x: release_group_losses(
            key, losses, jnp.int32(0), LOSSES, EDGE.w, x[None])[0],
            jnp.stack([same, same.at[0].set(50.0)]))
    primal = of == "primal_risk"
    query = jmm.mechanism.HeldOutBound(
        bound=1.0, population=RECORDS, noise_multiplier=multiplier,
        loss_range=(0.0, 1.0) if primal else None)
    # an operator along z - u, where all other records have it, and a loss that moves with it
    along = jnp.array([0.0, -1.0, 4.0]) if primal else jnp.array([1.0, -1.0, 0.0])
    one = jnp.tile(along, (RECORDS, 1)) * 50.0
    radius = held_out.largest_distance(GAME.problem, EDGE, REACH[of], GAME.diameter, primal)
    return Path(query, lambda key, x: held_out.release_held_out_bound(
        key, query, jnp.int32(0), GAME.problem, EDGE, x, radius),
        jnp.stack([one, one.at[0].multiply(-1.0)]))


def _runs(made: Path, runs: int) -> np.ndarray:
    """Released numbers on both data sets, `[2, runs]`, with keys of their own."""
    keys = jax.random.split(jax.random.key(23), (2, runs))
    return np.asarray(jax.jit(jax.vmap(lambda keys, x: jax.vmap(
        lambda key: made.released(key, x))(keys)))(keys, made.data), np.float64)


def signal(of: str, multiplier: float = 0.5, runs: int = 4000) -> Finding:
    """How far a record moves a certificate in deviations of its noise, over what is charged."""
    made = path(of, multiplier)
    y = _runs(made, runs)
    moved = abs(y[0].mean() - y[1].mean())
    deviation = math.sqrt(y.var(1).mean())
    # both are estimates: 4 standard errors lower, so that a sound release is above once in 10^4
    low = (moved / deviation - 4 * math.sqrt(2 / runs)) / (1 + 4 / math.sqrt(4 * runs))
    return Finding(low, 1 / made.described.effective_noise_multiplier("replace_one"))


def attack(of: str, epsilon: float, runs: int) -> Finding:
    """Lower bound on epsilon at DELTA of a certificate; the limit is the claimed one."""
    bare = path(of, 1.0).described
    quiet = jmm.accounting.calibrate_noise(
        dataclasses.replace(bare, noise_multiplier=None), epsilon, DELTA)
    one, two = _runs(path(of, float(quiet.noise_multiplier)), runs)
    found, *_ = jmm.audit.lower_bound({"y": one}, {"y": two}, DELTA)
    return Finding(found, jmm.epsilon(quiet, DELTA))


def everything(runs: int) -> Iterator[tuple[str, str, Finding]]:
    """The attacks of all kinds: their names, and what they found."""
    for of in ("worst_group", "strong_gap", "primal_risk"):
        yield "certificate", f"{of}, epsilon 4", attack(of, 4.0, runs)
        yield "certificate, signal", of, signal(of, runs=runs)


# --- whether bounds hold ---


@functools.cache
def _biased(share: float, count: int = 400, records: int = 20) -> Any:
    """Records of value 1 with probability `share`, else -1, of many draws, `[count, records]`."""
    rng = np.random.default_rng(5)
    return jnp.asarray(np.where(rng.random((count, records)) < share, 1.0, -1.0), jnp.float32)


def below(beta: float = 0.5) -> Finding:
    """Share of gap certificates that are below the gap, of a game where both halves are the gap.

    f = x (w - v), x in {-1, 1}, at z = (1, -1): the gap is 4 E x, and each player has half of it.
    """
    x = _biased(0.9)
    count, records = x.shape
    query = jmm.mechanism.HeldOutBound(bound=math.sqrt(2), population=records,
                                       noise_multiplier=0.01)
    radius = held_out.largest_distance(GAME.problem, EDGE, REACH["strong_gap"], GAME.diameter)
    pair = jnp.stack([x, -x, 0 * x], -1)
    keys = jax.random.split(jax.random.key(29), count)
    y = jax.jit(jax.vmap(lambda key, x: held_out.release_held_out_bound(
        key, query, jnp.int32(0), GAME.problem, EDGE, x, radius)))(keys, pair)
    bounds = [certificates.bound_gap(float(a), query, radius, beta).bound for a in y]
    failed = float(np.mean(np.array(bounds) < 4 * 0.8))
    return Finding(failed, beta + 4 * math.sqrt(beta / count))


def charged() -> Finding:
    """Epsilon of a certificate alone over that of the statement of training and certificate."""
    apart = jmm.problems.hold_out(200, 0.25)
    quiet = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(80.0, 80.0), population=150)
    query = jmm.mechanism.HeldOutBound(bound=math.sqrt(2), population=50, noise_multiplier=1.0)
    made = jmm.certify(jax.random.key(3), query, EDGE, np.ones((200, 3), np.float32), GAME,
                       held_out=apart, training=jmm.Repeat(query=quiet, times=1), delta=1e-6,
                       of="strong_gap")
    return Finding(jmm.epsilon(query, 1e-6), made.statement.epsilon)


def narrow() -> Finding:
    """The least bound that any split of beta allows, by the formula, over the printed one."""
    beta, h, radius = 0.05, 50, 2.0
    query = jmm.mechanism.HeldOutBound(bound=1.0, population=h, noise_multiplier=3.0)
    printed = certificates.bound_gap(0.0, query, radius, beta).bound
    deviation = 3.0 * (1 + 2e-3) * 2 * radius / h
    normal = statistics.NormalDist()
    needed = min(-deviation * normal.inv_cdf(share * beta) + radius * math.sqrt(
        2 * math.log(1 / ((1 - share) * beta)) / h) for share in np.linspace(0.005, 0.995, 199))
    return Finding(needed, printed)
