"""Groups, certified solutions and single records on a mesh, for `mesh_worker`."""

import contextlib
import dataclasses
import functools
import tempfile
from unittest import mock

from mesh_setup import (  # before JAX
    GAME,
    KEY,
    START,
    D,
    N,
    apart,
    dataset,
    fitted,
    meshed,
    refusal,
    stop,
)

# isort: split
import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.drivers import fingerprint
from jaxminimax.placement import sent_rows, shard_sums
from jaxminimax.releases import noisy_sums, reading, solutions
from jaxminimax.releases.groups import (
    release_group_gradient,
    release_group_index,
    release_group_losses,
    release_loss,
    release_weighted_gradient,
)
from jaxminimax.releases.solutions import release_group_solution, release_resolvent
from jaxminimax.releases.stream import release_leaf

SIZES = (41, 23, 9)  # 6 rows a shard of 8: the largest group is padded, the smallest is in two
W = jnp.full(D, 0.3)
CLIP, BOUND = 0.7, 3.0


def far(w, z):
    return jnp.sqrt(1.0 + jnp.sum(jnp.square(w - z)))  # neither 0 nor flat at the padding's zeros


PROBLEM = jmm.problems.worst_group(far, jmm.problems.ball(2.0), lipschitz=1.0, bound=20.0,
                                   smooth=1.0, convex=True)
MEANS = jmm.problems.group_means(radius=2.0, record_bound=1.5)


def groups():
    """Records far above the clip norm, small ones and ones that are not finite, by group."""
    rows = np.random.default_rng(2).normal(size=(sum(SIZES), D))
    rows[[3, 50]], rows[7] = np.nan, 1e9
    return jmm.problems.by_group(rows, np.random.default_rng(3).permutation(
        np.repeat(np.arange(3), SIZES)))[0]


def placed(count, data=None):
    return jmm.placement.shard(groups() if data is None else data, meshed(count), grouped=True)


def gradients(noise=1.0, **values):
    query = jmm.GroupGradients(clip=CLIP, sizes=SIZES, noise_multiplier=noise, **values)
    return jmm.mechanism.Repeat(query=query, times=3)


def losses(kind, noise=1.0):
    return kind(bound=BOUND, sizes=SIZES, noise_multiplier=noise, times=3)


WEIGHTS = jnp.array([0.2, 0.5, 0.3])


@jax.jit
def of_all(noise, data, w=W):
    return release_weighted_gradient(KEY, gradients(noise, groups="all"), jnp.int32(1), PROBLEM, w,
                                     data, WEIGHTS)


@jax.jit
def by_weight(noise, data):
    return release_weighted_gradient(
        KEY, gradients(noise, groups="all", clips="by_weight"), jnp.int32(1), PROBLEM, W, data,
        WEIGHTS)


@jax.jit
def of_each(described, data):
    """A gradient of every group, and NaN for one that there is not."""
    return jax.lax.map(lambda i: release_group_gradient(
        KEY, described, jnp.int32(1), PROBLEM, W, data, i), jnp.arange(4))


@jax.jit
def of_losses(noise, data):
    zero = jnp.int32(0)
    return (release_group_losses(KEY, losses(jmm.GroupLosses, noise), zero, PROBLEM, W, data),
            release_group_index(KEY, losses(jmm.mechanism.Selection, noise), zero, PROBLEM, W,
                                data))


def releases(found):
    """Each release on 2 and 8 devices, with noise and without, against one device."""
    data = groups()
    for noise in (1.0, 0.0):
        one = of_all(noise, data), of_losses(noise, data)
        for count in (2, 8):
            rows = placed(count)
            found[f"groups all {count} {noise}"] = apart(one[0], of_all(noise, rows))
            if count == 8:
                found[f"groups by weight {noise}"] = apart(by_weight(noise, data),
                                                           by_weight(noise, rows))
                found[f"groups losses {noise}"] = apart(one[1], of_losses(noise, rows))
    for name, sampling in {"full": jmm.Full(), "poisson": jmm.Poisson(rate=0.3)}.items():
        described = gradients(sampling=sampling), gradients(0.0, sampling=sampling)
        for noise, each in zip((1.0, 0.0), described, strict=True):
            one, many = of_each(each, data), of_each(each, placed(8))
            found[f"groups {name} {noise}"] = apart(one, many)
            found[f"groups refused {name}"] = np.isnan(many).all(1).tolist()


def clips(found):
    """What one record moves: sums of a group by 2 C, wherever it is, and mean losses by B / n."""
    silent, most = gradients(0.0), []
    for group, row in ((0, 0), (0, 6), (0, 40), (1, 22), (2, 5), (2, 8)):
        data = np.full((3, 41, D), 1e6)
        before = of_each(silent, placed(8, data))[group], of_losses(0.0, placed(8, data))[0]
        data[group, row] = -1e6
        after = of_each(silent, placed(8, data))[group], of_losses(0.0, placed(8, data))[0]
        most.append(float(jnp.linalg.norm(after[0] - before[0])) * SIZES[group] / CLIP)
        data[group, row] = W  # a loss of 1
        moved = of_losses(0.0, placed(8, data))[0] - before[1]
        most.append(float(-moved[group]) * SIZES[group])
    found["groups noise scale"] = noise_scale(placed(8))
    found["groups all clips"] = float(jnp.linalg.norm(before[0])) * SIZES[2] / CLIP
    found["groups moved"] = most


def noise_scale(data):
    """Standard deviation of what is released of no gradient, over the described one."""
    problem, wide = PROBLEM._replace(operator=lambda z, _: jax.tree.map(jnp.zeros_like, z)), (
        jnp.zeros(3000))
    described = gradients(1.5, groups="all")
    made = jax.jit(lambda data: release_weighted_gradient(
        KEY, described, jnp.int32(0), problem, wide, data, WEIGHTS))(data)
    return float(jnp.std(made)) / (1.5 * CLIP * float(jnp.max(WEIGHTS / jnp.array(SIZES))))


def planted(found):
    """What could go wrong with masks, sums and noise of groups."""
    one, rows = of_all(0.0, groups()), placed(8)
    noise = noisy_sums.integer_noise
    bugs = {
        "group's mask": (shard_sums, "counted", lambda number, sizes: jnp.broadcast_to(
            number < 41, (len(sizes), len(number)))),
        "shards' mask": (shard_sums, "counted", lambda number, sizes: jnp.ones(
            (len(sizes), len(number)), bool)),
        "noise of every device": (noisy_sums, "integer_noise", lambda *x: jax.tree.map(
            lambda a: 8 * a, noise(*x))),
    }
    for name, (where, attribute, wrong) in bugs.items():
        of_all.clear_cache()
        with mock.patch.object(where, attribute, wrong):
            found[f"groups bug {name}"] = (abs(noise_scale(rows) - 1) if "noise" in name else
                                           apart(one, of_all(0.0, rows)))
    of_all.clear_cache()


# --- certified solutions, single records ---


# 30 rows of two shards of 8, which are spread over all of them with 2 that do not count
SAMPLED = jmm.proximal.certified(jmm.mechanism.Resolvent(
    bound=1.0, prox=8.0, lipschitz=1.5, diameter=8.0, population=N, noise_multiplier=1.0,
    assumes="lipschitz", sampling=jmm.Disjoint(batch=30), slack=0.1))


PHASED = jmm.phased_erm.certified(jmm.mechanism.GroupSolution(
    lipschitz=MEANS.lipschitz, bound=MEANS.bound, smooth=MEANS.smooth, diameter=MEANS.diameter,
    reg_w=1.0, reg_lam=1.0, sizes=SIZES, phases=2, slack=0.05, noise_multiplier=1.0))


@jax.jit
def point(described, data):
    """Of the second proximal step."""
    return release_resolvent(KEY, jmm.mechanism.Repeat(query=described, times=2), jnp.int32(1),
                             GAME, START, data)


@jax.jit
def phase(noise, data):
    """Of the second phase."""
    described = dataclasses.replace(PHASED, noise_multiplier=noise)
    return release_group_solution(KEY, described, jnp.int32(1), MEANS, W, data)


def certified(found):
    """Points of 8 devices against those of one, with noise and without."""
    data, silent = dataset(), dataclasses.replace(SAMPLED, noise_multiplier=0.0)
    rows, grouped = jmm.placement.shard(data, meshed(8)), placed(8)
    one, two = point(silent, data), phase(0.0, groups())
    found["points"] = apart((point(SAMPLED, data), phase(1.0, groups())),
                            (point(SAMPLED, rows), phase(1.0, grouped)))
    found["silent points"] = apart((one, two), (point(silent, rows), phase(0.0, grouped)))
    found["certified"] = bool(jnp.isfinite(jnp.concatenate([*one, two])).all())
    found["phase"] = phase(1.0, groups()).tolist()
    point.clear_cache()
    with mock.patch.object(solutions, "operator_extrapolation", lambda _, start, *__: start):
        found["unsolved"] = apart(point(silent, rows), Saddle(*[jnp.full(D, jnp.nan)] * 2))
    point.clear_cache()


def planted_solutions(found):
    """What could go wrong with the rows of a solution."""
    silent = dataclasses.replace(SAMPLED, noise_multiplier=0.0)
    rows, grouped = jmm.placement.shard(dataset(), meshed(8)), placed(8)
    one, two = point(silent, dataset()), phase(0.0, groups())
    taken = sent_rows._taken
    bugs = {
        "sum of one shard": (sent_rows, "sum_rows", lambda _, x: x[0]),
        "other rows": (sent_rows, "_taken", lambda mine, local, *x: taken(mine, local + 1, *x)),
        "padding counts": (solutions, "_spread", lambda data, sample: (
            sent_rows.evenly(data, sample.rows), jnp.ones(32, bool))),
    }
    for name, (where, attribute, wrong) in bugs.items():
        phase.clear_cache()
        point.clear_cache()
        with mock.patch.object(where, attribute, wrong):
            found[f"points bug {name}"] = (apart(one, point(silent, rows)) if "padding" in name
                                           else apart(two, phase(0.0, grouped)))
    phase.clear_cache()
    point.clear_cache()


@jax.jit
def singly(data, grouped):
    """A record's gradient in a tree, and one's loss."""
    zero = jnp.int32(0)
    leaf = jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=1.0, leaves=N)
    loss = jmm.mechanism.RecordLosses(bound=BOUND, noise_multiplier=1.0, times=SIZES[0])
    return (release_leaf(KEY, leaf, zero, GAME, START, data, (jnp.int32(131),)),
            release_loss(KEY, loss, zero, PROBLEM, W, grouped, (jnp.int32(1), jnp.int32(22))))


def streams(found):
    """Single records, wherever they are, and none beyond the rows."""
    data, rows = dataset(), jmm.placement.shard(dataset(), meshed(8))
    found["singly"] = apart(singly(data, groups()), singly(rows, placed(8)))
    kinds = (np.array([-1, 2, -128], np.int8), np.array([True, False, True]),
             np.array([-0.0, np.inf, 1.5], np.float16))
    sent = jax.jit(lambda x: sent_rows.evenly(x, jnp.array([2, 0])))(
        jmm.placement.shard(kinds, meshed(2)))
    found["bits"] = all(np.asarray(x).tobytes() == y[[2, 0]].tobytes()
                        for x, y in zip(sent, kinds, strict=True))
    each = jax.jit(jax.vmap(lambda i: reading.record_at(rows, (i,))))
    found["records"] = apart(data, each(jnp.arange(N))[0])
    found["beyond"] = each(jnp.array([-1, N, N + 4]))[1].tolist()


# --- whole runs ---


def balanced():
    return jmm.balanced_groups.Hyper(
        query=gradients(groups="all").query, losses=losses(jmm.GroupLosses), step=0.2,
        weight_step=0.3, iterations=3, balanced=0.4)


def runs(found):
    """One of all groups, which is saved on one device and goes on on four."""
    go = functools.partial(fitted, balanced(), groups(), z=Saddle(W, ()), problem=PROBLEM,
                           algorithm=jmm.balanced_groups)
    one = go()
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(KeyboardInterrupt):
            go(every=1, checkpoint=folder, callback=stop(1))
        many = go(meshed(4), every=1, checkpoint=folder)
    found["groups state"] = [x.tolist() for x in one.state.z]
    found["groups run"] = apart(one.state, many.state)
    found["groups statement"] = one.statement == many.statement
    found["groups epsilon"] = many.statement.epsilon
    found["groups marks"] = len({fingerprint.hash_rows(b"secret", x, grouped=True)
                                 for x in (groups(), placed(8), placed(4))})
    found["groups ungrouped"] = refusal(lambda: fitted(
        balanced(), jmm.placement.shard(groups(), meshed(1)), z=Saddle(W, ()), problem=PROBLEM,
        algorithm=jmm.balanced_groups))


def together(found):
    """Two processes feed their own rows of every group."""
    mesh, data = jax.make_mesh((4,), ("data",)), groups()
    mine = jmm.placement.own_rows(SIZES[0], mesh)
    rows = jmm.placement.shard(data[:, mine], mesh, population=SIZES[0], grouped=True)
    many = fitted(balanced(), rows, z=Saddle(W, ()), problem=PROBLEM, algorithm=jmm.balanced_groups)
    solved = np.asarray(phase(1.0, rows))
    found["groups state"], found["phase"] = [x.tolist() for x in many.state.z], solved.tolist()
    found["groups bytes"] = b"".join(np.asarray(x).tobytes() for x in (
        solved, *jax.tree.leaves(many.state))).hex()
    found["groups epsilon"] = many.statement.epsilon
    found["groups mark"] = fingerprint.hash_rows(b"secret", rows, grouped=True) == (
        fingerprint.hash_rows(b"secret", data, grouped=True))
