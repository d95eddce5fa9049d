"""Planted bugs: what each function of the release path is replaced by; `aims` says where."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.privacy.attacks import group as group_attack
from jaxminimax import Saddle
from jaxminimax.base.random_bits import fold_in
from jaxminimax.gradients import clipping
from jaxminimax.mechanism import (
    Poisson,
    phase_sizes,
    poisson,
    rows_read,
    sampling,
)
from jaxminimax.mechanism.description import Kind
from jaxminimax.mechanism.sampling import SampleKeys
from jaxminimax.releases import (
    release_keys,
)
from jaxminimax.releases.watch import watched, watched_pair

# --- noise ---


def _scaled(x: jax.Array, factor: jax.Array | float) -> jax.Array:
    return jnp.floor(factor * x.astype(jnp.float32)).astype(jnp.int32)


def quieter(factor: float) -> Callable[[Any], Any]:
    """Integer noise of another deviation."""
    return lambda draw: lambda *args: _scaled(draw(*args), factor)


def noise_of_balanced_weights(noisy_sum: Any) -> Any:
    """All groups' gradients with the noise of balanced weights, while the weights move."""
    sizes = group_attack.SIZES

    def wrong(opened: Any, rows: Any, size: Any) -> Any:
        exact, noisy = (noisy_sum(x, rows, size) for x in (
            dataclasses.replace(opened, noise_multiplier=Saddle(0.0, None)), opened))
        # a record's share is v_i / (n_i s), and v adds up to 1
        s = 1 / rows.added(
            lambda z, part, *_: jnp.sum(part.read(0, part.count)[1]), None)[0]
        low = 1 / (len(sizes) * min(sizes) * s)
        return noisy._replace(value=jax.tree.map(lambda a, b: a + (b - a) * low, exact.value,
                                                 noisy.value))

    return wrong


def quieter_index(factor: float) -> Callable[[Any], Any]:
    """Gumbel noise of another scale: scores are further apart."""
    return lambda draw: lambda key, below: draw(
        key, jnp.minimum(below.astype(jnp.float32) / factor, 2.0**29).astype(jnp.int32))


def scale_of_each_group(_: Any) -> Any:
    """Gumbel noise by each group's own size."""
    def changed(key: Any, below: Any) -> Any:
        own = min(group_attack.SIZES) / jnp.array(group_attack.SIZES, jnp.float32)
        drawn = jax.random.gumbel(key, below.shape, jnp.float32)
        return jnp.argmax(own * drawn - below * 2.0**-22).astype(jnp.int32)

    return changed


def of_one_player(factor: float) -> Callable[[Any], Any]:
    """The same of player w alone."""
    def make(noise: Any) -> Any:
        def changed(*args: Any) -> Any:
            result = noise(*args)
            return result._replace(w=jax.tree.map(lambda x: _scaled(x, factor), result.w))

        return changed

    return make


def times(factor: float) -> Callable[[Any], Any]:
    """A function's value times a number."""
    return lambda function: lambda *args, **how: factor * function(*args, **how)


def of_key_0(draw: Any) -> Any:
    return lambda key, *rest: draw(jax.random.key(0), *rest)


def uniform(_: Any) -> Any:
    """Of the same variance."""
    def changed(key: Any, size: int, bits: Any) -> Any:
        wide = 3**0.5 * jnp.exp2(jnp.asarray(bits, jnp.float32))
        return jnp.floor(wide * jax.random.uniform(key, (size,), jnp.float32, -1, 1)).astype(
            jnp.int32)

    return changed


def one_draw_for_both(noise: Any) -> Any:
    def changed(key: Any, like: Any, scale: Any) -> Any:
        return Saddle(noise(key, Saddle(like.w, None), Saddle(scale.w, None)).w,
                      noise(key, Saddle(None, like.v), Saddle(None, scale.v)).v)

    return changed


def scalars_share(noise: Any) -> Any:
    """A leaf without axes has the noise of the number after it, in units of its grid."""
    def changed(*args: Any) -> Any:
        result, structure = jax.tree.flatten(noise(*args))
        for i in reversed(range(len(result) - 1)):
            if result[i].ndim == 0:
                result[i] = jnp.ravel(result[i + 1])[0]
        return jax.tree.unflatten(structure, result)

    return changed


def leaves_share(noise: Any) -> Any:
    """A quarter of the variance comes from a draw that all leaves share."""
    def changed(key: Any, like: Any, scale: Any) -> Any:
        apart = noise(key, like, scale)
        one = noise(jax.random.fold_in(key, 7), Saddle(*(
            None if x is None else jnp.zeros(()) for x in like)), scale)
        common = jax.tree.leaves(one)[0]
        return jax.tree.map(lambda x: _scaled(x, 0.75**0.5) + common // 2, apart)

    return changed


def one_noise_a_level(node: Any) -> Any:
    return lambda key, level, index, *rest: node(key, level, jnp.int32(1), *rest)


def one_noise_an_index(node: Any) -> Any:
    return lambda key, level, index, *rest: node(key, jnp.int32(0), index, *rest)


def of_block_0(keys: Any) -> Any:
    """Correlated noise is made of the same numbers over and over."""
    def changed(key: Any, kind: Any, number: Any) -> Any:
        return keys(key, kind, 0 if kind in (
            Kind.INNOVATION, Kind.MEAN_INNOVATION) else number)

    return changed


def of_number_0(keys: Any) -> Any:
    """All releases of a kind have the keys of its first one."""
    return lambda key, kind, number: keys(key, kind, 0)


def of_the_noises_words(_: Any) -> Any:
    """The sample's size is drawn from the words that the noise is made of."""
    def changed(keys: Any, mechanism: Any, spent: Any) -> Any:
        source = SampleKeys(keys.added(), keys.run)
        with mock.patch.object(poisson, "fold_in", lambda key, number: (
                key if number == poisson._SIZE else fold_in(key, number))):
            return sampling.draw(source, mechanism.query, spent % mechanism.times)

    return changed


def of_the_noises_key(_: Any) -> Any:
    """Operators draw from the words that the noise is made of."""
    return lambda keys: jax.random.key_data(keys.noise)[:2]


def of_first_mark(ahead: Any) -> Any:
    """All samples that are sent ahead have one mark."""
    return lambda keys: ahead(release_keys.Keys(keys.run, int(Kind.MEAN), 0))


def loss_of_round_0(release_loss: Any) -> Any:
    """Inside the release, whose number the program of the round shows as it was given."""
    @functools.wraps(release_loss)
    def changed(key: Any, mechanism: Any, spent: Any, *args: Any, **how: Any) -> Any:
        return release_loss.__wrapped__(key, mechanism, 0 * spent, *args, **how)

    return watched(changed)


def by_all_records(laplace: Any) -> Any:
    """Scale B / K instead of B / n_i: the sensitivity of the mean over all groups."""
    def changed(key: Any, shape: Any) -> Any:
        return _scaled(laplace(key, shape), group_attack.SIZES[0] / sum(group_attack.SIZES))

    return changed


# --- samples ---


def times_the_rate(factor: float) -> Callable[[Any], Any]:
    def make(draw: Any) -> Any:
        def changed(key: Any, query: Any, spent: Any) -> Any:
            if not isinstance(query.sampling, Poisson):
                return draw(key, query, spent)
            capacity = rows_read(query)
            more = Poisson(rate=min(1.0, factor * query.sampling.rate), capacity=capacity)
            return draw(key, dataclasses.replace(query, sampling=more), spent)

        return changed

    return make


def ties_not_extended(thresholds: Any) -> Any:
    """A size is decided by the first word, also where that is equal to a threshold's."""
    def changed(*of: Any) -> Any:
        first, table = thresholds(*of)
        return first, np.where(np.arange(table.shape[1]) == 0, table, np.uint32(0))

    return changed


def repeated_rows(firsts: Any) -> Any:
    """Rows that are drawn several times are not looked for."""
    return lambda rows, there: there


def first_slots(least: Any) -> Any:
    """The first new slots hold the sample, not random ones."""
    def changed(key: jax.Array, words: jax.Array, among: jax.Array, m: jax.Array) -> Any:
        return least(key, jnp.arange(words.shape[0], dtype=jnp.uint32) << 12, among, m)

    return changed


def cut_short(_: Any) -> Any:
    """Of a sample that does not fit, as many rows as fit are read."""
    return lambda size, new, most: jnp.ones((), bool)


def any_fits(draw: Any) -> Any:
    return lambda key, query, spent: draw(key, query, spent)._replace(fits=jnp.array(True))


def first_batch_only(draw: Any) -> Any:
    return lambda key, query, spent: draw(key, query, jnp.zeros_like(spent))


def reshuffled(draw: Any) -> Any:
    """Every other pass, from the first on, takes the batches in the opposite order."""
    def changed(keys: Any, query: Any, spent: Any) -> Any:
        batches = query.population // query.sampling.batch
        place, turned = spent % batches, spent // batches % 2 == 0
        return draw(keys, query, jnp.where(turned, batches - 1 - place, place))

    return changed


def fits_if_sent(read: Any) -> Any:
    """Rows that were sent for a release count, also beyond the capacity."""
    def changed(window: Any, spent: Any, words: Any) -> Any:
        sample, places, rows = read(window, spent, words)
        inside = (spent >= window.first) & (spent < window.first + len(window.numbers))
        return sample._replace(fits=inside), places, rows

    return changed


# --- sums ---


def clip_times(factor: float) -> Callable[[Any], Any]:
    return lambda weight: lambda ratio, present: weight(ratio / factor, present)


def lifted(weight: Any) -> Any:
    return lambda ratio, present: weight(jnp.minimum(ratio, 0.5), present)


def in_bfloat16(norm: Any) -> Any:
    """Norms of numbers that were cast, sums of the numbers themselves."""
    return lambda g: norm(jax.tree.map(
        lambda x: jax.lax.reduce_precision(x, 8, 7), g))  # casts to and fro may be left out


def counted_twice(num_unclipped: Any) -> Any:
    """A record moves a count by twice what is charged."""
    return lambda self, weight: jax.tree.map(lambda x: 2 * x, num_unclipped(self, weight))


def by_realised_size(sums: Any) -> Any:
    def changed(self: clipping.ClippedSum, z: Any, data: Any, mask: Any, rounding: Any) -> Any:
        result, factor = sums(self, z, data, mask, rounding), 2.0 / jnp.maximum(jnp.sum(mask), 1)
        return result._replace(integers=jax.tree.map(
            lambda x: _scaled(x, factor.astype(jnp.float32)), result.integers))

    return changed


def without_cross_terms(gram: Any) -> Any:
    return lambda x: gram(x) * jnp.eye(x.shape[1], dtype=x.dtype)[None]


def of_the_first_matrix(norms_of: Any) -> Any:
    """Of several matrices in one parameter."""
    return lambda factors: tuple(x[:, :1] if x.ndim > 1 else x for x in norms_of(factors))


def without_lookups(norms: Any) -> Any:
    """Of a table that is multiplied with, too."""
    return lambda x, rows, d, least: norms(x, rows, d.at[:, x.shape[1]:].set(0), least)


def losses_clipped_at(factor: float) -> Callable[[Any], Any]:
    return lambda clipped: lambda each, bound: clipped(each, factor * bound)


def scores_clipped_at(factor: float) -> Callable[[Any], Any]:
    return lambda clipped: lambda each, bound: factor * clipped(each, factor * bound)


def of_gradients_alone(_: Any) -> Any:
    """The length of a solution without what the groups' weights add to it."""
    def length(query: Any, reg_w: Any) -> Any:
        n = min(phase_sizes(query))
        return (1 + 2 * query.slack) * 2 * query.lipschitz / (n * reg_w)

    return length


# --- algorithms ---


def silent_once(release: Any) -> Any:
    """No noise in one of ten rounds."""
    @functools.wraps(release)
    def changed(key: Any, mechanism: Any, spent: Any, *args: Any, **how: Any) -> Any:
        on = jnp.where(spent % 10 == 3, 0.0, 1.0).astype(jnp.float32)
        query = mechanism.query
        scaled = jax.tree.map(lambda z: z * on, query.noise_multiplier)
        query = dataclasses.replace(query, noise_multiplier=scaled)
        return release.__wrapped__(key, dataclasses.replace(mechanism, query=query), spent, *args,
                                   **how)

    return watched_pair(changed)  # the description that is seen is the one that is charged


def same_key_in_two_rounds(release: Any) -> Any:
    """Inside the release, whose number the program of the round shows as it was given."""
    @functools.wraps(release)
    def changed(key: Any, mechanism: Any, spent: Any, *args: Any, **how: Any) -> Any:
        return release.__wrapped__(key, mechanism, spent - spent % 2, *args, **how)

    return watched_pair(changed)


def keeps_noise(observe_record: Any) -> Any:
    """The state holds what was added to the last record's vector."""
    def changed(key: Any, state: Any, data: Any, *rest: Any) -> Any:
        new = observe_record(key, state, data, *rest)
        quiet = jnp.clip(data[state.spent], -1.0, 1.0)
        (_, before), (_, total) = state.memory, new.memory
        added = jax.tree.map(lambda a, b: a - b - quiet, total, before)
        return new._replace(memory=(added, total))

    return changed


def not_advanced(update: Any) -> Any:
    def changed(key: Any, state: Any, *args: Any) -> Any:
        return update(key, state, *args)._replace(spent=state.spent)

    return changed
