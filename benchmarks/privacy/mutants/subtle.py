"""Planted bugs that are far from a factor of two, each with what finds it; see `mutants`.

They change one type, one release in fifty, one group, one block of numbers, or a charge by less
than a part in five hundred, so that a test of another case, or of an inequality, does not see them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import FULL, KEY, Finding, query
from jaxminimax import Saddle, mechanism
from jaxminimax.gradients import clipping
from jaxminimax.mechanism.grid import charged_multiplier
from jaxminimax.releases import groups, noisy_sums, reading, stream, sums

RELEASES = 121  # more than two of fifty releases each

# --- the plants ---


def sample_of_the_one_before(keys: Any) -> Any:
    """Of one release in fifty: its sample is that of the release before it."""
    def changed(key: Any, kind: Any, number: Any) -> Any:
        number = jnp.asarray(number)
        own = keys(key, kind, number)
        own.sample = keys(key, kind, number - (number % 50 == 49)).sample
        return own

    return changed


def dither_of_key_0(dither: Any) -> Any:
    """All releases round with the same uniform numbers."""
    return lambda key, like: dither(jax.random.key(0), like)


def clip_of_float16_a_seventh_high(norm: Any) -> Any:
    """Of leaves of that type alone."""
    def changed(g: Any) -> Any:
        narrow = any(x.dtype == jnp.float16 for x in jax.tree.leaves(g))
        return norm(g) / (1.15 if narrow else 1.0)

    return changed


def last_eighth_quieter(draw: Any) -> Any:
    """The last eighth of a release's integer noise is a twentieth low."""
    def changed(*args: Any) -> Any:
        x = draw(*args)
        first = x.size - x.size // 8
        return x.at[first:].set(jnp.floor(0.95 * x[first:].astype(jnp.float32)).astype(jnp.int32))

    return changed


def size_of_one_record_more(thresholds: Any) -> Any:
    """Sizes of samples are drawn for a population of n + 1."""
    return lambda rate, population, most: thresholds(rate, population + 1, most)


def clip_of_w_for_both(sums: Any) -> Any:
    """Where both players have the same shapes."""
    def changed(self: clipping.ClippedSum, z: Saddle, *args: Any) -> Any:
        shapes = [jax.tree.map(jnp.shape, player) for player in z]
        if shapes[0] == shapes[1] and None not in self.clip:
            self = dataclasses.replace(self, clip=Saddle(self.clip.w, self.clip.w))
        return sums(self, z, *args)

    return changed


def last_group_clipped_higher(clipped: Any) -> Any:
    """Losses of the last group are clipped a fifth high."""
    def changed(each: Any, bound: Any) -> Any:
        return clipped(each, bound * jnp.ones_like(each).at[-1].set(1.2))

    return changed


def first_node_of_each_level(node: Any) -> Any:
    """Nodes that begin at the first leaf, one for each power of two, share their noise."""
    return lambda key, level, index, *rest: node(key, jnp.where(index == 1, 0, level), index, *rest)


def taps_side_by_side(patches: Any) -> Any:
    """The window of a dilated convolution is read as if it were not dilated."""
    def changed(how: Any, x: Any, window: Any) -> Any:
        result = patches(how, x, window)
        near = patches({**how, "rhs_dilation": (1,) * len(window)}, x, window)
        return near[tuple(map(slice, result.shape))]

    return changed


# --- the detectors ---


def charge_in_50_digits(z: float, smallest: float, parameters: int, absent: bool) -> Decimal:
    """The charged multiplier by the formula of `mechanism.grid`, in decimal arithmetic."""
    with localcontext() as context:
        context.prec = 50
        # a clip norm has more than 2^17 and at most 2^18 units; more of them from 2^24 numbers on
        bits, finer = 0, 0
        while parameters > 2 ** (24 + 2 * finer):
            finer += 1
        while 2**bits <= 2 ** (17 + finer) * Decimal(smallest) and bits < 22:
            bits += 1
        r, t, d = 128, 6, Decimal(parameters)
        eta = Decimal("1.001") * (r**2 / Decimal(3).sqrt() + 4 * r) / 2**24
        units = 2**bits / Decimal(z)
        distance = (1 + 2 * eta) * units if absent else 2 * (1 + eta) * units
        mean = distance + d.sqrt() / 255
        moved = min(distance + d.sqrt(), (mean**2 + 2 * t * mean + d / 4 + t * d.sqrt()).sqrt())
        return Decimal(z) * (units if absent else 2 * units) / moved


def rounding_charged() -> Finding:
    """Largest distance of a charged multiplier from its formula, as a part of it."""
    worst = 0.0
    for z in (1e-4, 0.3, 1.0, 3.7, 100.0):
        for parameters in (1, 1000, 2**20, 10**8):
            for absent in (False, True):
                result = charged_multiplier(z, 0.8 * z, parameters, absent=absent)
                exact = charge_in_50_digits(z, 0.8 * z, parameters, absent)
                worst = max(worst, abs(float(Decimal(result) / exact - 1)))
    return Finding(worst, 1e-12)


def _pairs_alike(rows: np.ndarray) -> Finding:
    """Pairs of equal rows; none may be."""
    result = np.unique(rows, axis=0, return_counts=True)[1]
    return Finding(float(np.sum(result * (result - 1) // 2)), 0.0)


def samples_alike() -> Finding:
    """Pairs of releases with one sample."""
    made = mechanism.Repeat(query=query(mechanism.Poisson(rate=0.5), 200), times=RELEASES)

    def members(spent: jax.Array) -> jax.Array:
        sample = reading.sample_of_release(KEY, made, spent)
        return jnp.zeros(200, bool).at[sample.rows].max(sample.valid)

    return _pairs_alike(np.asarray(jax.jit(jax.vmap(members))(jnp.arange(RELEASES))))


def rounded_alike() -> Finding:
    """Pairs of releases that round a sum in the same way; noise is held at 0."""
    made = mechanism.Repeat(times=40, query=query(
        FULL, 1, clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None)))
    x = jnp.linspace(0.01, 0.1, 64, dtype=jnp.float32)

    def release(spent: jax.Array) -> jax.Array:
        return sums.release(KEY, made, spent, jmm.Problem(lambda z, x: Saddle(x, ())),
                            Saddle(0 * x, ()), x[None]).w

    with mock.patch.object(noisy_sums, "floored_normal",
                           lambda key, size, *_: jnp.zeros(size, jnp.int32)):
        return _pairs_alike(np.asarray(jax.jit(jax.vmap(release))(jnp.arange(made.times))))


def one_float16_record() -> Finding:
    """Norm of one clipped record of float16 leaves over the clip norm, largest by strategy."""
    operator = jmm.saddle_operator(lambda w, v, x: jnp.sum(w * x))
    x = jnp.linspace(-90.0, 110.0, 40, dtype=jnp.float16)
    norms = [jnp.linalg.norm(clipping.clipped_sum(operator, Saddle(1.0, None), strategy=strategy)(
        Saddle(0 * x, ()), x[None]).w) for strategy in clipping.STRATEGIES]
    return Finding(float(max(norms)), 1.0 + 1e-6)


def quietest_part() -> Finding:
    """Described over measured deviation of the quietest eighth of a release's numbers."""
    size, clip, z = 2**16, 0.5, 1.5
    made = mechanism.Repeat(times=1, query=query(
        FULL, 1, clip=Saddle(clip, None), noise_multiplier=Saddle(z, None)))
    g = sums.release(KEY, made, jnp.int32(0), jmm.Problem(lambda z, x: z),
                     Saddle(jnp.zeros(size, jnp.float32), ()), jnp.zeros(1)).w
    parts = np.asarray(g, np.float64).reshape(8, -1)
    return Finding(float(np.max(clip * z / np.sqrt(np.mean(parts**2, 1)))),
                   1 + 5 / math.sqrt(2 * parts.shape[1]))


def often_drawn() -> Finding:
    """Records of 4,000 samples of 8 at rate 1/4, above the expected, in standard deviations."""
    n, rate, count = 8, 0.25, 4000
    made = mechanism.Repeat(query=query(mechanism.Poisson(rate=rate), n), times=1)

    def size(key: jax.Array) -> jax.Array:
        sample: Any = reading.sample_of_release(key, made, jnp.int32(0))
        return jnp.sum(sample.valid)

    total = int(jnp.sum(jax.jit(jax.vmap(size))(jax.random.split(KEY, count))))
    return Finding((total - count * n * rate) / math.sqrt(count * n * rate * (1 - rate)), 5.0)


def own_clip_norm() -> Finding:
    """Norm of a clipped record over the clip norm of its player, the larger of both."""
    clip, x = Saddle(0.5, 0.2), jnp.full((1, 6), 100.0, jnp.float32)
    total = clipping.clipped_sum(lambda z, x: Saddle(x, x), clip)(
        Saddle(0 * x[0], 0 * x[0]), x)
    return Finding(max(float(jnp.linalg.norm(g)) / c for g, c in zip(total, clip, strict=True)),
                   1.0 + 1e-6)


def largest_mean_loss() -> Finding:
    """Largest mean loss of a group without noise over the bound of a loss."""
    described = mechanism.GroupLosses(bound=2.0, sizes=(3, 4, 2), noise_multiplier=0.0, times=1)
    problem = jmm.problems.worst_group(lambda w, x: 100.0 * x, jmm.problems.ball(1.0),
                                       lipschitz=1.0, bound=1.0)
    y = groups.release_group_losses(KEY, described, jnp.int32(0), problem, jnp.zeros(1),
                                    jnp.ones((3, 4)))
    return Finding(float(jnp.max(y)) / 2.0, 1.0 + 1e-6)


def nodes_alike() -> Finding:
    """Pairs of a tree's nodes with one noise."""
    made = mechanism.TreeSums(clip=1.0, noise_multiplier=1.0, leaves=15)
    scale = noisy_sums.scales(Saddle(1.0, None), Saddle(1.0, None), 100).w
    level, index = jnp.asarray([(level, j) for level in range(4)
                                for j in range(1, (15 >> level) + 1)]).T
    z = Saddle(jnp.zeros(16, jnp.float32), ())
    return _pairs_alike(np.asarray(jax.vmap(
        lambda level, index: stream._node(KEY, level, index, made, z, scale).w)(level, index)))


def dilated() -> Finding:
    """Distance of the sums by factors and by whole gradients of dilated convolutions.

    Windows of few pixels are cut out one by one; those of many come from a convolution.
    """
    @functools.partial(jax.jit, static_argnums=0)
    def distance(dilation: tuple[int, int], w: jax.Array, x: jax.Array) -> jax.Array:
        operator = jmm.saddle_operator(lambda w, v, x: jnp.sum(jnp.tanh(
            jax.lax.conv_general_dilated(x[None], w, (1, 1), "VALID", rhs_dilation=dilation))))
        ghost, full = (clipping.clipped_sum(operator, Saddle(1.0, None), strategy=strategy)(
            Saddle(w, ()), x).w for strategy in ("ghost", "vmap"))
        return jnp.linalg.norm(ghost - full)

    result = 0.0
    for dilation, *shapes in (((2, 3), (4, 2, 3, 2), (3, 2, 8, 9)),
                              ((1, 2), (2, 1, 9, 8), (3, 1, 11, 18))):
        w, x = (jax.random.normal(key, shape, jnp.float32)
                for key, shape in zip(jax.random.split(KEY), shapes, strict=True))
        result = max(result, float(distance(dilation, w, x)))
    return Finding(result, 1e-4)


# name, what it breaks, what is replaced and by what, detector, and what its number is
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("rounding to the grid not charged", "accountant: what rounding moves",
     "rounding of a distance", lambda _: lambda distance, parameters: 0.0, rounding_charged,
     "distance from the formula, a part"),
    ("sample of one release in fifty used again", "independence of samples", "keys of a release",
     sample_of_the_one_before, samples_alike, "pairs of releases with one sample"),
    ("rounding numbers of one release used in all", "independence of rounding", "dither",
     dither_of_key_0, rounded_alike, "pairs of releases rounded alike"),
    ("clip norm of float16 leaves 15 % high", "sensitivity", "norm",
     clip_of_float16_a_seventh_high, one_float16_record,
     "norm of one clipped record over the clip norm"),
    ("noise of the last eighth a twentieth low", "standard deviation", "integer noise",
     last_eighth_quieter, quietest_part, "described over measured deviation"),
    ("sizes of samples of one record more", "amplification", "law of sizes",
     size_of_one_record_more, often_drawn, "records drawn, standard deviations"),
    ("clip norm of one player for both of one shape", "sensitivity", "clipped sum",
     clip_of_w_for_both, own_clip_norm, "norm of one clipped record over the clip norm"),
    ("losses of the last group clipped a fifth high", "sensitivity of losses", "clipped losses",
     last_group_clipped_higher, largest_mean_loss, "mean loss over the bound"),
    ("nodes over a power of two share their noise", "independence of a tree's nodes", "node",
     first_node_of_each_level, nodes_alike, "pairs of nodes with one noise"),
    ("dilation of a convolution dropped", "sensitivity, of gradients kept as factors",
     "pixels of a window", taps_side_by_side, dilated, "distance of two sums over the clip norm"),
)
