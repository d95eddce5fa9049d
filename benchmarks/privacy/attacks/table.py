"""An attack from a file to the releases of `train`: one person is replaced, with an equal key.

The person's name, rows, their number and their places change. Both tables are written to a file and
read, split where persons are held out, and passed to `train` with one key, so that the noise
cancels in the difference of two releases, which is compared with the sensitivity that is charged.
Both runs go on from the releases of the first table, as in adaptive composition. The attack covers
the release of charged ranges, those of means and second moments, gradients at three points (of the
average record, by every kind of label, and of all groups with equal weights), the losses of groups,
and the release that calibrates scores.
"""

import decimal
import pathlib
import types
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from jaxminimax import Saddle, sgda
from jaxminimax.apps.tables import (
    Category,
    Charged,
    Number,
    Schema,
    files,
    linear,
    train,
)
from jaxminimax.apps.tables import records as recording
from jaxminimax.apps.tables.columns import Column
from jaxminimax.mechanism import GroupLosses, Repeat
from jaxminimax.releases import sums
from jaxminimax.releases.groups import release_group_losses, release_weighted_gradient

PERSONS, MOST, ROUTES = 30, 2, ("frame", "csv", "parquet")
LARGE = 1_700_000_000_000_000_000  # floats are 256 apart there
COLUMNS: dict[str, Column] = {"a": Number(-1, 1), "b": Number(0, 9, log=True, missing=True),
           "c": Category(("1", str(LARGE), "u"))}
GROUPS: dict[str, Any] = {"groups": "g", "group_values": ("0", "1")}
SCHEMAS = {
    "ranges": Schema(COLUMNS | {"a": Charged()}, "y", "1", "who", MOST),
    "average": Schema(COLUMNS, "y", "1", "who", MOST),
    "losses": Schema(COLUMNS, "y", "1", "who", MOST, **GROUPS),
    "balanced": Schema(COLUMNS, "y", "1", "who", MOST, **GROUPS, by_label=True),
    "classes": Schema({"a": COLUMNS["a"], "b": COLUMNS["b"]}, "c", None, "who", MOST,
                      target=Category(("1", str(LARGE), "u"))),
    "number": Schema({"b": COLUMNS["b"], "c": COLUMNS["c"]}, "a", None, "who", MOST,
                     target=Number(-1, 1))}
PROVEN = "mean with distance "  # less than twice a clip norm, so that it must be attained
_gradient = jax.jit(sums.release, static_argnames="problem")
_of_all_groups = jax.jit(release_weighted_gradient, static_argnames="problem")

# names of persons that are easily taken for each other, by number
NAMES: dict[str, Callable[[int], Any]] = {
    "int64": lambda k: LARGE + 200 * k, "negative": lambda k: -LARGE - 200 * k,
    "uint64": lambda k: 2**64 - 1 - 900 * k,
    "decimal": lambda k: decimal.Decimal(10**30 + k),
    "digits": lambda k: str(10**400 + k),
    "like numbers": lambda k: ("{}", "{}.0", "0{}", " {}", "{} ", "{}e0", "+{}")[k % 7].format(
        k // 7),
    "like words": lambda k: ("true", "TRUE", "1", "1.0", "nan", "None", "NA")[k % 7] + " " * (
        k // 7),
    "uuid": lambda k: str(uuid.UUID(int=2**127 + k)), "bytes": lambda k: bytes([255, k]),
    "unicode": lambda k: unicodedata.normalize("NFC" if k % 2 else "NFD", "\u00e9" * (k // 2 + 1)),
    "small": lambda k: k}
CELLS = ("1", "-1", "0.5", "1e300", "-inf", "nan", "", "text", " 1 ", "9" * 400, "\ufeff", "1,5")
LABELS = ("0", "1", "0", "1", "", "NA")
CORNERS = {"a": ("-1.0", "1.0"), "b": ("0", "9"), "c": ("1", "u"), "y": ("0", "1")}
VALUES = ("1", "1.0", "true", "u", "U", "", str(LARGE), str(LARGE + 1), "x")


class Moved(NamedTuple):
    """How far a release moved.

    Attributes:
      name: of the kind of release.
      ratio: distance over the charged sensitivity; infinite where the numbers of persons differ.
    """

    name: str
    ratio: float


def _rows(rng: np.random.Generator, group: int, count: int, label: int | None,
          corner: int | None = None) -> list[dict[str, Any]]:
    """Rows of a person: of odd cells, or all at the ends of their ranges.

    `corner`: 0 for all lower ends and 1 for all upper ones, which are as far apart as can be.
    """
    edge = rng.random() < 0.7 or corner is not None
    ends = {"a": str(rng.choice([-1.0, 1.0])), "b": str(rng.choice(["0", "9"])),
            "c": str(rng.choice(["1", "u"])), "y": str(rng.choice(LABELS))}
    if corner is not None:
        ends = {name: cells[corner] for name, cells in CORNERS.items()}
    fixed = {"g": group} | ({} if label is None else {"y": str(label)})
    return [(ends if edge else {"a": str(rng.choice(CELLS)), "b": str(rng.choice(CELLS)),
                                "c": str(rng.choice(VALUES)), "y": str(rng.choice(LABELS))}) | fixed
            for _ in range(count)]


def neighbours(seed: int, names: str, fixed_label: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two tables that differ in one person.

    Args:
      seed: of everything.
      names: one of `NAMES`.
      fixed_label: whether a person's label is public, and stays.
    """
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(PERSONS + 1)
    people = []
    for k in range(PERSONS):
        # both groups have persons of both labels
        label = k // 2 % 2 if fixed_label else None
        people.append(_rows(rng, k % 2, int(rng.integers(1, MOST + 3)), label))
    order = rng.permutation([k for k, rows in enumerate(people) for _ in rows])
    gone = int(rng.integers(PERSONS))
    opposite = rng.random() < 0.5
    label = gone // 2 % 2 if fixed_label else None
    if opposite:
        people[gone] = _rows(rng, gone % 2, len(people[gone]), label, 0)
    new = _rows(rng, gone % 2, int(rng.integers(1, MOST + 3)), label, 1 if opposite else None)
    of_others = [k for k in order if k != gone]
    places = rng.integers(len(of_others) + 1, size=len(new))
    other_order = np.insert(np.array(of_others), places, -1)

    def table(order: Any, people: dict[int, tuple[Any, list[dict[str, Any]]]]) -> pd.DataFrame:
        left = {k: iter(rows) for k, (_, rows) in people.items()}
        return pd.DataFrame([{"who": people[k][0]} | next(left[k]) for k in map(int, order)])

    named = {k: (NAMES[names](int(numbers[k])), rows) for k, rows in enumerate(people)}
    return table(order, named), table(
        other_order, named | {-1: (NAMES[names](int(numbers[PERSONS])), new)})


def _read(table: pd.DataFrame, route: str, folder: pathlib.Path) -> pd.DataFrame:
    """The table as it comes out of a file."""
    path = folder / f"t.{route}"
    if route == "frame":
        return table
    if route == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path)
    return files.read(path)


def _points(start: jax.Array) -> Iterator[jax.Array]:
    """The start, and points at which records have small and large gradients."""
    towards = jnp.asarray(np.random.default_rng(0).normal(size=start.shape), start.dtype)
    return (jnp.asarray(start) + size * towards for size in (0.0, 1.0, -30.0))


def releases(table: pd.DataFrame, schema: Schema, key: jax.Array,
             before: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every release of `train`, as its description and answer.

    Args:
      table: rows.
      schema: of the table.
      key: of the run.
      before: releases of another table, whose answers are handed on in place of these.
    """
    made: list[tuple[Any, Any]] = []

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(key: jax.Array, described: Any, *rest: Any) -> Any:
            made.append((described, function(key, described, *rest)))
            return made[-1][1] if before is None else before[len(made) - 1][1]

        return call

    def rounds(key: jax.Array, start: Saddle, data: Any, hyper: Any, algorithm: Any, problem: Any,
               **_: Any) -> Any:
        """In place of a run: releases of it at given points."""
        for k, w in enumerate(_points(start.w)):
            described = Repeat(query=hyper.query, times=hyper.iterations)
            if algorithm is sgda:
                recorded(_gradient)(key, described, jnp.int32(k), problem, Saddle(w, ()), data)
            else:
                sizes = hyper.query.sizes
                recorded(_of_all_groups)(key, described, jnp.int32(k), problem, w, data,
                                         jnp.full(len(sizes), 1 / len(sizes)))
        state = algorithm.init(start, hyper)
        return types.SimpleNamespace(state=state._replace(
            mean=state.mean._replace(value=state.mean.value._replace(w=w))))

    with mock.patch.multiple(sums, compiled_release=recorded(sums.compiled_release)), \
            mock.patch.multiple(recording,
                                release_group_losses=recorded(release_group_losses)), \
            mock.patch.multiple(linear, fit=rounds):
        train(table, schema, epsilon=20.0, delta=1e-3, key=key)
    return made


def _charged(described: Any) -> tuple[str, float]:
    """The kind of a release, and the distance of its answers on neighbours that is charged for."""
    if isinstance(described, GroupLosses):  # replace-one moves one group's mean of losses in [0, B]
        return "losses of groups", float(described.bound / min(described.sizes))
    query = described.query
    if hasattr(query, "sizes"):
        return "gradient of all groups", 2 * query.clip / (len(query.sizes) * min(query.sizes))
    if query.distance is not None:
        distance = query.distance.w
        return f"{PROVEN}{distance:.3g}, as {query.because}", distance / query.population
    return f"mean with clip norm {query.clip.w:.3g}", 2 * query.clip.w / query.population


def attack(seed: int, kind: str, names: str, route: str, folder: pathlib.Path) -> list[Moved]:
    """How far each release moves when one person is replaced.

    Args:
      seed: of tables and key.
      kind: one of `SCHEMAS`.
      names: one of `NAMES`.
      route: one of `ROUTES`.
      folder: for files.
    """
    schema = SCHEMAS[kind]
    made: list[Any] = []
    for table in neighbours(seed, names, schema.by_label):
        read = _read(table, route, folder)
        if kind == "average":  # groups are public, so their sizes must not change
            read = read[~files.held_out(len(read), schema.owners(read), 0.2, seed)]
        made.append(releases(read, schema, jax.random.key(seed), made[0] if made else None))
    moved = []
    for (described, first), (other, second) in zip(*made, strict=True):
        if described != other:
            return [Moved("number of persons", float("inf"))]
        name, charged = _charged(described)
        apart = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - b, first, second)
        moved.append(Moved(name, float(np.sqrt(sum(
            np.sum(np.square(x)) for x in jax.tree.leaves(apart))) / charged)))
    return moved


def worst(count: int, folder: pathlib.Path, names: tuple[str, ...] = tuple(NAMES),
          kinds: tuple[str, ...] = tuple(SCHEMAS)) -> dict[str, float]:
    """The largest ratio of each kind of release over `count` tables of all kinds and names."""
    result: dict[str, float] = {}
    for k in range(count):
        for one in attack(k, kinds[k % len(kinds)], names[k % len(names)],
                          ROUTES[k // len(kinds) % len(ROUTES)], folder):
            result[one.name] = max(result.get(one.name, 0.0), one.ratio)
    return result
