"""Records that a release reads: their numbers, drawn from its key, and the rows themselves.

Data of another layout than described are refused here, before anything is read.
"""


import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.types import PyTree
from jaxminimax.gradients.summation import Part
from jaxminimax.mechanism import GroupGradients, Query, Repeat, Resolvent
from jaxminimax.mechanism.sampling import NARROW, Sample, SampleKeys, draw, draw_in_group
from jaxminimax.placement import gather_rows
from jaxminimax.placement.host_data import Sent, Window, mark
from jaxminimax.placement.sharding import Sharded, check_key, refuse_ahead
from jaxminimax.releases import opening
from jaxminimax.releases.opening import Keys

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
    found = ({(data.population,)} if isinstance(data, Window) else
             {data.lead} if isinstance(data, Sharded) else
             {jnp.shape(x)[: len(rows)] for x in jax.tree.leaves(data)})
    enough = more and len(found) == 1 and len(min(found)) == len(rows) and min(found) >= rows
    if found != {rows} and not enough:
        raise ValueError(f"data has leading axes {found}, but the mechanism was described for "
                         f"{described}.")


def check_parts(data: PyTree, mechanism: Repeat) -> None:
    """`check_rows` of a repeated query: the population, or at least that of all parts."""
    assert isinstance(mechanism.query, Query | Resolvent)
    parts, n = mechanism.parts, mechanism.query.population
    checks.count("population", n)
    described = f"population={n}" if parts == 1 else f"{parts} parts of {n} records"
    check_rows(data, (parts * n,), described, more=parts > 1)


def check_groups(data: PyTree, sizes: tuple[int, ...]) -> None:
    """`check_rows` of groups of these sizes, `[p, n_max, ...]`."""
    checks.count("sizes", min(sizes))
    check_rows(data, (len(sizes), max(sizes)), f"{len(sizes)} groups of up to {max(sizes)} "
               "records: use problems.by_group")


def record_at(data: PyTree, place: Place) -> tuple[PyTree, jax.Array]:
    """The record at a place, and whether there is one: an index that is too large finds none.

    Raises:
      ValueError: while tracing, for arrays of different lengths.
    """
    refuse_ahead(data)
    spread = isinstance(data, Sharded)
    rows = data.lead if spread else next(
        (jnp.shape(x)[: len(place)] for x in jax.tree.leaves(data)), ())
    check_rows(data, rows, f"records with {len(place)} number(s), the same for every array")
    if len(rows) != len(place):
        raise ValueError(f"data has leading axes {rows}, but a record is named by {len(place)} "
                         "number(s).")
    inside = jnp.array(True)
    for index, length in zip(place, rows, strict=True):
        inside &= (index >= 0) & (index < length)
    if spread:
        return gather_rows.record(data, place), inside
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
    keys = opening.keys_of_release(key, opening.stream(opening.Kind.MEAN, mechanism), spent)
    source = SampleKeys(keys.sample, key, part_of(mechanism, spent))
    sample = draw(source, mechanism.query, spent % mechanism.times)
    if mechanism.parts > 1 and sample.rows is not None:
        sample = sample._replace(rows=sample.rows + _first_row(mechanism, spent))
    return keys.noise, sample


def described(mechanism: Repeat) -> tuple:
    """The settings that decide a release's sample, together with its key."""
    query = mechanism.query
    assert isinstance(query, Query | Resolvent)
    return query.sampling, query.population, mechanism.times, mechanism.parts


def samples_ahead(key: jax.Array, mechanism: Repeat, spent: jax.Array) -> Sent:
    """The samples of releases `spent`, int32 `[k]`, for a `Window`, each with its mark.

    Raises:
      ValueError: while tracing, if releases read every record.
    """
    def one(number: jax.Array) -> Sent:
        _, sample = sample_of_release(key, mechanism, number)
        if sample.rows is None:
            raise ValueError(f"{described(mechanism)[0]!r} reads every record in every release, so "
                             "nothing is gained by HostData: use Poisson, FixedSize or Disjoint, "
                             "or give the arrays themselves.")
        fits = jnp.asarray(sample.fits)
        words = opening.words_ahead(key, opening.stream(opening.Kind.MEAN, mechanism), number)
        marked = mark(words, sample.rows, sample.valid, sample.high) + fits
        return Sent(sample.rows, sample.high, sample.valid, fits, marked)

    return jax.vmap(one)(spent)


def _check_narrow(mechanism: Repeat, instead: str) -> None:
    """Refuses rows whose numbers are two words, but where the host alone reads them."""
    n = mechanism.query.population  # type: ignore[attr-defined]
    if n >= NARROW:
        raise ValueError(f"population={n} is 2**30 or more, so that only a host counts its rows: "
                         f"give HostData, {instead}.")


def _words_of(key: jax.Array, mechanism: Repeat, spent: jax.Array,
              data: Window) -> tuple[jax.Array, jax.Array]:
    """The key of a release's noise, and what its sample was marked with.

    Raises:
      ValueError: while tracing, for samples of another description.
    """
    if data.described != described(mechanism):
        raise ValueError(f"The releases read samples of {described(mechanism)}, but rows were sent "
                         f"for {data.described}: they were sent for another description.")
    stream = opening.stream(opening.Kind.MEAN, mechanism)
    noise = opening.keys_of_release(key, stream, spent).noise
    return noise, opening.words_ahead(key, stream, spent)


def sample_on_mesh(key: jax.Array, mechanism: Repeat, spent: jax.Array,
                   data: Sharded | Window) -> tuple[jax.Array, Sample, jax.Array | None]:
    """`sample_of_release`, which names its rows if they are a part of the data.

    Of rows that were sent ahead the shards know their own numbers: the sample names none, and the
    third is what it was marked with.

    Raises:
      ValueError: while tracing, for a key that is not threefry's, for rows that were sent for
        another description.
    """
    assert isinstance(mechanism.query, Query | Resolvent)
    check_key(key)
    _check_narrow(mechanism, "without a mesh")
    if isinstance(data, Window):
        noise, words = _words_of(key, mechanism, spent, data)
        return noise, Sample(None, None, True), words
    noise, sample = sample_of_release(key, mechanism, spent)
    if sample.rows is None and mechanism.parts > 1:
        sample = sample._replace(rows=numbers_of_rows(mechanism, spent, sample))
    return noise, sample, None


def sampled_records(key: jax.Array, mechanism: Repeat, spent: jax.Array,
                    data: PyTree) -> tuple[jax.Array, Sample, PyTree]:
    """As `sample_of_release`, and the records of the sample.

    Raises:
      ValueError: while tracing, for rows that were sent for another description.
    """
    query = mechanism.query
    assert isinstance(query, Query | Resolvent)
    refuse_ahead(data)
    places: jax.Array | None
    if isinstance(data, Window):  # drawn already, by `samples_ahead`
        noise, words = _words_of(key, mechanism, spent, data)
        sample, places, data = data.read(spent, words)
    else:
        _check_narrow(mechanism, "for fit")
        noise, sample = sample_of_release(key, mechanism, spent)
        places = sample.rows
    if places is not None:
        data = jax.tree.map(lambda x: x.at[places].get(
            mode="promise_in_bounds", indices_are_sorted=query.sampling.ordered), data)
    elif mechanism.parts > 1:
        first = _first_row(mechanism, spent)
        data = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, first, query.population), data)
    return noise, sample, data


def numbers_of_rows(mechanism: Repeat, spent: jax.Array, sample: Sample) -> jax.Array:
    """Which rows of the data a release reads, of a part too, int32 `[c]`.

    Raises:
      ValueError: while tracing, for rows whose numbers are two words.
    """
    assert isinstance(mechanism.query, Query | Resolvent)
    _check_narrow(mechanism, "and an operator that draws nothing")
    if sample.rows is not None:
        return sample.rows
    every = jnp.arange(mechanism.query.population, dtype=jnp.int32)
    return _first_row(mechanism, spent) + every


def sample_of_group(keys: Keys, run: jax.Array, query: GroupGradients,
                    group: jax.Array) -> Sample:
    """The sample of a group, see `sampled_of_group`, wherever its rows are."""
    return draw_in_group(SampleKeys(keys.sample, run), query, group)


def sampled_of_group(keys: Keys, run: jax.Array, query: GroupGradients, group: jax.Array,
                     data: PyTree) -> tuple[Sample, PyTree | Part]:
    """The sample of a group, and its records: places for the largest sample of any group.

    All records of a group are not copied: they are rows i n_max, i n_max + 1, ... of all.

    Args:
      keys: of the release.
      run: the run's key.
      query: see `GroupGradients`.
      group: i, int32 `[]`, one that there is.
      data: leaves `[p, n_max, ...]`.
    """
    sample = sample_of_group(keys, run, query, group)
    if sample.rows is None:
        longest = max(query.sizes)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)
        return sample, Part(flat, group * longest, longest)
    return sample, jax.tree.map(lambda x: x.at[group, sample.rows].get(mode="clip"), data)
