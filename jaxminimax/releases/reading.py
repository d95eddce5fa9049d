"""Reads the records of an opened release, and sums them, on one device or on a mesh.

A `Rows` is the one thing that differs between releases of sums: a sample of the population or of
one group, all groups with a share each, or one record at a place. Samples are drawn from the keys
of the release. Data of another layout than described are refused, before anything is read.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients.summation import Part, Rounding, Sums, rows_from
from jaxminimax.mechanism import Query, Repeat, Resolvent, groups, rows_read
from jaxminimax.mechanism.sampling import Sample, SampleKeys, draw, draw_in_group
from jaxminimax.placement import host_data, sent_rows, sharding
from jaxminimax.placement.shard_sums import one_group, sum_over_groups, sum_over_shards
from jaxminimax.releases import opening, release_keys
from jaxminimax.releases.opening import Opened, Place

Total = Callable[[Saddle, PyTree, jax.Array | None, Rounding], Sums]  # `ClippedSum.sums`


# --- samples ---


def part_of(mechanism: Repeat, number: jax.Array) -> jax.Array:
    """The part of the data that a release reads; the nearest one for releases that are refused."""
    # `times` releases read part 0, the next ones part 1, ...
    return jnp.clip(number // mechanism.times, 0, mechanism.parts - 1)


def _first_row(mechanism: Repeat, number: jax.Array) -> jax.Array:
    """Returns the first row of the part that a release reads."""
    return part_of(mechanism, number) * mechanism.query.population


def draw_sample(keys: release_keys.Keys, mechanism: Repeat, number: jax.Array) -> Sample:
    """The sample of a release of a `Query` or a `Resolvent`, with rows counted in all of the data.

    A function of the run's key and of the release's number alone: it is the same sample on whatever
    device it is drawn.
    """
    assert isinstance(mechanism.query, Query | Resolvent)
    source = SampleKeys(keys.sample, keys.run, part_of(mechanism, number))
    sample = draw(source, mechanism.query, number % mechanism.times)
    if mechanism.parts > 1 and sample.rows is not None:
        sample = sample._replace(rows=sample.rows + _first_row(mechanism, number))
    return sample


def sample_of_release(key: jax.Array, mechanism: Repeat, spent: jax.Array) -> Sample:
    """Draws the sample of release `spent` of a run with this key."""
    keys = release_keys.Keys(key, release_keys.stream(mechanism), spent)
    return draw_sample(keys, mechanism, spent)


def described(mechanism: Repeat) -> tuple[Any, ...]:
    """The settings that decide a release's sample, together with its key."""
    query = mechanism.query
    assert isinstance(query, Query | Resolvent)
    return query.sampling, query.population, mechanism.times, mechanism.parts


def samples_ahead(key: jax.Array, mechanism: Repeat, spent: jax.Array) -> host_data.Sent:
    """The samples of releases `spent`, int32 `[k]`, for a `Window`, each with its mark.

    Raises:
      ValueError: while tracing, if releases read every record.
    """
    stream = release_keys.stream(mechanism)

    def sample_ahead(number: jax.Array) -> host_data.Sent:
        keys = release_keys.Keys(key, stream, number)
        sample = draw_sample(keys, mechanism, number)
        if sample.rows is None:
            raise ValueError(f"{described(mechanism)[0]!r} reads every record in every release, so "
                             "nothing is gained by HostData: use Poisson, FixedSize or Disjoint, "
                             "or give the arrays themselves.")
        fits = jnp.asarray(sample.fits)
        # the mark covers `fits` too: a sample that does not fit stays refused
        marked = host_data.mark(keys.ahead(), sample.rows, sample.valid) + fits
        return host_data.Sent(sample.rows, sample.valid, fits, marked)

    return jax.vmap(sample_ahead)(spent)


def _words_sent(opened: Opened) -> jax.Array:
    """The words that marked the sample of a release when its rows were sent ahead.

    Raises:
      ValueError: while tracing, for samples of another description.
    """
    settings = described(opened.mechanism)
    if opened.data.described != settings:
        raise ValueError(f"The releases read samples of {settings}, but rows were sent "
                         f"for {opened.data.described}: they were sent for another description.")
    return opened.keys.ahead()


def _numbers_of_rows(opened: Opened, sample: Sample) -> jax.Array:
    """Returns the numbers of the rows that a release reads, of a part too, int32 `[c]`."""
    mechanism = opened.mechanism
    if sample.rows is not None:
        return sample.rows
    numbers = jnp.arange(mechanism.query.population, dtype=jnp.int32)
    return _first_row(mechanism, opened.number) + numbers


def sample_on_mesh(opened: Opened) -> Sample:
    """The sample of data on a mesh, which names its rows if they are a part of the data."""
    sample = draw_sample(opened.keys, opened.mechanism, opened.number)
    if sample.rows is None and opened.mechanism.parts > 1:
        sample = sample._replace(rows=_numbers_of_rows(opened, sample))
    return sample


def sampled_records(opened: Opened) -> tuple[Sample, PyTree]:
    """The sample of data that are on one device, and its records.

    Raises:
      ValueError: while tracing, for rows that were sent for another description.
    """
    mechanism, number, data = opened.mechanism, opened.number, opened.data
    slots: jax.Array | None
    if isinstance(data, host_data.Window):  # drawn already, by `samples_ahead`
        sample, slots, data = data.read(number, _words_sent(opened))
    else:
        sample = draw_sample(opened.keys, mechanism, number)
        slots = sample.rows
    if slots is not None:
        data = jax.tree.map(lambda x: x.at[slots].get(
            mode="promise_in_bounds", indices_are_sorted=opened.query.sampling.ordered), data)
    elif mechanism.parts > 1:
        # records first, ..., first + n - 1 of the part
        first = _first_row(mechanism, number)
        data = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, first, opened.query.population), data)
    return sample, data


# --- sums ---


class Rows(NamedTuple):
    """The records of one release.

    Attributes:
      most: rows that a sum has at most.
      added: `(total, rounding) -> (sums, whether the sample fits)`.
    """

    most: int
    added: Callable[[Total, Rounding], tuple[Sums, jax.Array | bool]]


def population_rows(opened: Opened) -> Rows:
    """The sample of a `Repeat` of a `Query`."""
    query, z, data, key_data = opened.query, opened.point, opened.data, opened.operator_key_data

    def added(total: Total, rounding: Rounding) -> tuple[Sums, jax.Array | bool]:
        if isinstance(data, sharding.Sharded):
            sample = sample_on_mesh(opened)
            # the shards' slots have a key apart from those of noise and dither
            return sum_over_shards(
                total, z, data, query, sample.rows, sample.valid, rounding,
                opened.keys.slots(), release_keys.with_key_data, key_data), sample.fits
        sample, records = sampled_records(opened)
        if key_data is not None:
            # keys by the rows' numbers in the data, not by their places in the sample
            rows = _numbers_of_rows(opened, sample)
            records = release_keys.with_key_data(records, rows, key_data)
        return total(z, records, sample.valid, rounding), sample.fits

    return Rows(rows_read(query), added)


def group_rows(opened: Opened, group: jax.Array) -> Rows:
    """The sample of one group of a `GroupGradients`; of any group it has as many slots.

    All records of a group are not copied: they are rows i n_max, i n_max + 1, ... of all.

    Args:
      opened: the release.
      group: i, int32 `[]`, one that there is.
    """
    query, z, data, key_data = opened.query, opened.point, opened.data, opened.operator_key_data
    sample = draw_in_group(SampleKeys(opened.keys.sample, opened.keys.run), query, group)
    slots = max(query.sizes) if sample.rows is None else sample.rows.shape[0]

    def added(total: Total, rounding: Rounding) -> tuple[Sums, jax.Array | bool]:
        if not isinstance(data, sharding.Sharded):
            records = group_records(sample, query.sizes, group, data)
            if key_data is not None:
                records = records.read(0, slots) if isinstance(records, Part) else records
                rows = jnp.arange(slots) if sample.rows is None else sample.rows
                records = release_keys.with_key_data(records, rows, key_data, group)
            return total(z, records, sample.valid, rounding), sample.fits
        if sample.rows is None:
            sums = sum_over_groups(total, z, data, query.sizes, rounding,
                                   release_keys.with_key_data_in_groups, key_data, group)
            return sums, sample.fits
        # whatever group it is, its part in a shard has as many slots as that of any group needs
        in_sizes = tuple(groups.in_group(query, size) for size in sorted(set(query.sizes)))
        return sum_over_shards(
            total, z, one_group(data, group), in_sizes, sample.rows, sample.valid, rounding,
            opened.keys.slots(),
            lambda x, rows, extra: release_keys.with_key_data(x, rows, *extra),
            None if key_data is None else (key_data, group)), sample.fits

    return Rows(slots, added)


def group_records(sample: Sample, sizes: tuple[int, ...], group: jax.Array,
                  data: PyTree) -> PyTree | Part:
    """The records of a sample of one group, of leaves `[p, n_max, ...]`."""
    if sample.rows is None:
        longest = max(sizes)
        # [p, n_max, ...] -> [p n_max, ...], group i from row i n_max on
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)
        return rows_from(flat, group * longest, longest)
    return jax.tree.map(lambda x: x.at[group, sample.rows].get(mode="clip"), data)


def all_group_rows(opened: Opened, share: jax.Array) -> Rows:
    """Every record of every group, each as a pair of itself and its group's share `[p]`."""
    sizes, z, data, key_data = (opened.query.sizes, opened.point, opened.data,
                                opened.operator_key_data)

    def attach(x: PyTree, group: jax.Array, row: jax.Array,
               extra: tuple[Any, ...]) -> tuple[Any, ...]:
        key_data, share = extra
        x = release_keys.with_key_data_in_groups(x, group, row, key_data)
        # (x, r_i) of a record of group i
        return x, jnp.broadcast_to(share[group], row.shape)

    def added(total: Total, rounding: Rounding) -> tuple[Sums, jax.Array | bool]:
        if isinstance(data, sharding.Sharded):
            return sum_over_groups(total, z, data, sizes, rounding, attach,
                                   (key_data, share)), True
        part = read_groups(data, sizes, lambda x, group, row: attach(
            x, group, row, (key_data, share)))
        return total(z, part, None, rounding), True

    return Rows(sum(sizes), added)


def read_groups(data: PyTree, sizes: tuple[int, ...],
                attach: Callable[[PyTree, jax.Array, jax.Array], PyTree]) -> Part:
    """The records of all groups in their order, without the padding of leaves `[p, n_max, ...]`.

    Args:
      data: the leaves.
      sizes: n_1, ..., n_p.
      attach: `(records [size, ...], groups, rows [size]) -> leaves [size, ...]`, groups `[size]` or
        the one group of all, `[]`.
    """
    ends = np.cumsum(sizes, dtype=np.int32)

    def place(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        # record k is row k - (n_1 + ... + n_(i-1)) of group i
        group = jnp.searchsorted(jnp.asarray(ends), number, side="right", method="scan_unrolled")
        return group, number - jnp.asarray(ends - np.asarray(sizes, np.int32))[group]

    def read(start: jax.typing.ArrayLike, size: int) -> PyTree:
        start, count = jnp.asarray(start, jnp.int32), jnp.arange(size, dtype=jnp.int32)
        (group, first), (last, _) = place(start), place(start + (size - 1))

        def by_number() -> PyTree:
            places = place(start + count)
            return attach(jax.tree.map(
                lambda x: x.at[places].get(mode="promise_in_bounds"), data), *places)

        def in_one_piece() -> PyTree:
            return attach(jax.tree.map(lambda x: jax.lax.dynamic_slice(
                x, [group, first] + [jnp.int32(0)] * (x.ndim - 2), (1, size, *x.shape[2:]))[0],
                data), group, first + count)

        # only the few slices that reach into the next group are gathered row by row
        return by_number() if size > max(sizes) else jax.lax.cond(
            group == last, in_one_piece, by_number)

    return Part(sum(sizes), read)


def is_in(data: PyTree, place: Place) -> jax.Array:
    """Returns whether there is a record at a place, bool `[]`, by the data's shapes alone."""
    exists = jnp.array(True)
    for index, length in zip(place, opening.check_place(data, place), strict=True):
        exists &= (index >= 0) & (index < length)
    return exists


def record_at(data: PyTree, place: Place) -> tuple[PyTree, jax.Array]:
    """The record at a place, and whether there is one: an index that is too large names none.

    Raises:
      ValueError: as `opening.check_place`.
    """
    exists = is_in(data, place)
    # out of range the nearest record is read, and `exists` is False
    if isinstance(data, sharding.Sharded):
        return sent_rows.record(data, place), exists
    return jax.tree.map(lambda x: jnp.asarray(x).at[place].get(mode="clip"), data), exists


def record_of(opened: Opened, place: Place) -> tuple[PyTree, jax.Array]:
    """Reads `record_at` of a release, with its key's data where the problem draws."""
    record, exists = record_at(opened.data, place)
    *group, row = place
    return release_keys.with_key_data(record, jnp.asarray(row), opened.operator_key_data,
                                      *group), exists


def row_at(opened: Opened, place: Place, present: jax.Array | None) -> Rows:
    """The record at a place, if there is one."""
    def added(total: Total, rounding: Rounding) -> tuple[Sums, jax.Array | bool]:
        record, exists = record_of(opened, place)
        mask = exists if present is None else exists & present
        # a batch of one, [1, ...], masked if there is no record
        return total(opened.point, jax.tree.map(lambda x: x[None], record), mask[None],
                     rounding), True

    return Rows(1, added)
