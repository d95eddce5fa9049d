"""Records that a release reads: their numbers, drawn from its key, and the rows themselves.

Data of another layout than described are refused here, before anything is read.
"""


import jax
import jax.numpy as jnp

from jaxminimax.base.types import PyTree
from jaxminimax.door import core
from jaxminimax.door.core import Keys
from jaxminimax.mechanism import GroupGradients, Query, Repeat, Resolvent, SampleKeys
from jaxminimax.mechanism.sampling import Sample, draw, draw_in_group
from jaxminimax.placement.host_data import Window
from jaxminimax.placement.sharding import Sharded, check_key, refuse

Place = tuple[jax.Array, ...]  # an index for each leading axis


# --- rows ---


def check_rows(data: PyTree, rows: tuple[int, ...], described: str, *, more: bool = False) -> None:
    """Refuses data whose leading axes are not those of the described records.

    Args:
      data: leaves `[*rows, ...]`, on a mesh or sent ahead.
      rows: lengths of the axes that number the records.
      described: what the description says of them, for the message.
      more: whether there may be more, in one axis.

    Raises:
      ValueError: naming the axes and what was described.
    """
    found = ({(data.population,)} if isinstance(data, Window | Sharded)
             else {jnp.shape(x)[: len(rows)] for x in jax.tree.leaves(data)})
    if found != {rows} and not (more and len(found) == 1 and min(found) >= rows):
        raise ValueError(f"data has leading axes {found}, but the mechanism was described for "
                         f"{described}.")


def check_parts(data: PyTree, mechanism: Repeat) -> None:
    """`check_rows` of a repeated query: the population, or at least that of all parts."""
    assert isinstance(mechanism.query, Query | Resolvent)
    parts, n = mechanism.parts, mechanism.query.population
    described = f"population={n}" if parts == 1 else f"{parts} parts of {n} records"
    check_rows(data, (parts * n,), described, more=parts > 1)


def check_groups(data: PyTree, sizes: tuple[int, ...]) -> None:
    """`check_rows` of groups of these sizes, `[p, n_max, ...]`."""
    refuse(data)
    check_rows(data, (len(sizes), max(sizes)), f"{len(sizes)} groups of up to {max(sizes)} "
               "records: use problems.by_group")


def record_at(data: PyTree, place: Place) -> tuple[PyTree, jax.Array]:
    """The record at a place, and whether there is one: an index that is too large finds none.

    Raises:
      ValueError: while tracing, for arrays of different lengths.
    """
    refuse(data)
    rows = next((jnp.shape(x)[: len(place)] for x in jax.tree.leaves(data)), ())
    check_rows(data, rows, f"records with {len(place)} number(s), the same for every array")
    if len(rows) != len(place):
        raise ValueError(f"data has leading axes {rows}, but a record is named by {len(place)} "
                         "number(s).")
    inside = jnp.array(True)
    for index, length in zip(place, rows, strict=True):
        inside &= (index >= 0) & (index < length)
    return jax.tree.map(lambda x: jnp.asarray(x).at[place].get(mode="clip"), data), inside


# --- samples ---


def part_of(mechanism: Repeat, spent: jax.Array) -> jax.Array:
    """The part of the data that a release reads; the nearest one for releases that are refused."""
    return jnp.clip(spent // mechanism.times, 0, mechanism.parts - 1)


def _first_row(mechanism: Repeat, spent: jax.Array) -> jax.Array:
    """Where the part begins that a release reads."""
    assert isinstance(mechanism.query, Query | Resolvent)
    return part_of(mechanism, spent) * mechanism.query.population


def sample_of_release(key: jax.Array, mechanism: Repeat,
                      spent: jax.Array) -> tuple[jax.Array, Sample]:
    """A key for the noise of a release, and its sample, with rows counted in all of the data.

    A function of the run's key and of `spent` alone: whoever has them, on whatever device, finds
    the same sample.
    """
    assert isinstance(mechanism.query, Query | Resolvent)
    keys = core.keys_of_release(key, core.Kind.MEAN, spent)
    source = SampleKeys(keys.sample, key, part_of(mechanism, spent))
    sample = draw(source, mechanism.query, spent % mechanism.times)
    if mechanism.parts > 1 and sample.rows is not None:
        sample = sample._replace(rows=sample.rows + _first_row(mechanism, spent))
    return keys.noise, sample


def sample_on_mesh(key: jax.Array, mechanism: Repeat,
                   spent: jax.Array) -> tuple[jax.Array, Sample]:
    """`sample_of_release`, which names its rows if they are a part of the data.

    Raises:
      ValueError: while tracing, for a key that is not threefry's.
    """
    assert isinstance(mechanism.query, Query | Resolvent)
    check_key(key)
    noise, sample = sample_of_release(key, mechanism, spent)
    if sample.rows is None and mechanism.parts > 1:
        sample = sample._replace(rows=numbers_of_rows(mechanism, spent, sample))
    return noise, sample


def sampled_records(key: jax.Array, mechanism: Repeat, spent: jax.Array,
                    data: PyTree) -> tuple[jax.Array, Sample, PyTree]:
    """As `sample_of_release`, and the records of the sample.

    Raises:
      ValueError: while tracing, for rows sent ahead for a release that reads every record.
    """
    query = mechanism.query
    assert isinstance(query, Query | Resolvent)
    noise, sample = sample_of_release(key, mechanism, spent)
    places = sample.rows
    refuse(data)
    if isinstance(data, Window):  # what was sent ahead counts only if it is what is read now
        if places is None:
            raise ValueError(f"{query.sampling!r} reads every record, not rows sent ahead.")
        data, places, same = data.read(spent, places)
        sample = sample._replace(fits=sample.fits & same)
    if places is not None:
        data = jax.tree.map(lambda x: x.at[places].get(
            mode="promise_in_bounds", indices_are_sorted=query.sampling.ordered), data)
    elif mechanism.parts > 1:
        first = _first_row(mechanism, spent)
        data = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, first, query.population), data)
    return noise, sample, data


def numbers_of_rows(mechanism: Repeat, spent: jax.Array, sample: Sample) -> jax.Array:
    """Which rows of the data a release reads, of a part too, int32 `[c]`."""
    assert isinstance(mechanism.query, Query | Resolvent)
    if sample.rows is not None:
        return sample.rows
    every = jnp.arange(mechanism.query.population, dtype=jnp.int32)
    return _first_row(mechanism, spent) + every


def sampled_of_group(keys: Keys, run: jax.Array, query: GroupGradients, group: jax.Array,
                     data: PyTree) -> tuple[Sample, PyTree]:
    """The sample of a group, and its records: places for the largest sample of any group.

    Args:
      keys: of the release.
      run: the run's key.
      query: see `GroupGradients`.
      group: i, int32 `[]`, one that there is.
      data: leaves `[p, n_max, ...]`.
    """
    sample = draw_in_group(SampleKeys(keys.sample, run), query, group)
    if sample.rows is None:
        return sample, jax.tree.map(lambda x: x[group], data)
    return sample, jax.tree.map(lambda x: x.at[group, sample.rows].get(mode="clip"), data)
