"""Planted bugs of tables, and what catches them: persons, keys, noise, clip norms and charges."""

import contextlib
import dataclasses
import functools
import numbers
import pathlib
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.attacks import table as table_attack
from benchmarks.privacy.mutants import plants
from benchmarks.privacy.mutants.detectors import KEY, Finding
from jaxminimax import Saddle
from jaxminimax.apps.tables import (
    NoteWarning,
    Number,
    Schema,
    fair,
    files,
    labels,
    linear,
    records,
    rule,
    statistics,
    train,
)
from jaxminimax.base import identity
from jaxminimax.drivers import runs
from jaxminimax.estimators import PrivateAUCClassifier, PrivateFairClassifier
from jaxminimax.gradients import summation
from jaxminimax.mechanism import costs
from jaxminimax.releases import made_releases, release_keys, sums

AIMS: dict[str, tuple[Any, str]] = {
    "name of a person": (identity, "_name"),
    "rows of persons": (records, "rows_of_people"),
    "held-out rows": (files, "held_out"),
    "extra releases": (rule.Defaults, "extra"),
    "moments": (statistics, "release_moments"),
    "distance of moments": (statistics, "psi_apart"),
    "description of a release": (statistics, "one_release"),
    "charge over a distance": (costs, "gaussian"),
    "second moments": (statistics, "release_second_moments"),
    "calibration": (labels, "release_calibration"),
    "weight": (summation, "clip_weight"),
    "keys of a training": (release_keys, "training_keys"),
}
_PERSONS, _ROWS = 300, 4
_KINDS = {"two values": "average", "several classes": "classes", "a number": "number"}
# name in `AIMS` -> name in the settings, and labels that it is made for
_RELEASES = {"moments": ("moments", tuple(_KINDS)), "second moments": ("matrix", tuple(_KINDS)),
             "calibration": ("line", ("two values", "several classes"))}
_OWNERS = np.repeat(np.arange(_PERSONS), _ROWS)


def through_floats(name: Any) -> Any:
    """Integer owners are rounded to float64."""
    def changed(cell: Any, where: str) -> str:
        return name(int(float(cell)) if isinstance(cell, numbers.Integral) else cell, where)

    return changed


def two_records_each_hundredth(rows_of_people: Any) -> Any:
    """The rows beyond `most` of one person in a hundred make a record more."""
    def changed(owners: Any, most: int) -> np.ndarray:
        index = rows_of_people(owners, most)
        further = rows_of_people(owners, 2 * most)[99::100, most:]
        return np.concatenate([index, further[further[:, 0] >= 0]])

    return changed


def row_of_a_fiftieth_trains(held_out: Any) -> Any:
    """The first row of one held-out person in fifty is not held out."""
    def changed(rows: int, owners: Any, fraction: float, seed: int) -> np.ndarray:
        held = held_out(rows, owners, fraction, seed)
        firsts = np.flatnonzero(held)[np.unique(np.asarray(owners)[held], return_index=True)[1]]
        held[firsts[::50]] = False
        return held

    return changed


def without(name: str) -> Callable[[Any], Any]:
    """One release is not charged with the run."""
    return lambda extra: lambda self: tuple(
        x for x in extra(self) if x is not getattr(self, name))


def of_half_noise(function: Any) -> Any:
    """One release has half of the noise that is charged."""
    def changed(key: Any, described: Any, *rest: Any) -> Any:
        noise = Saddle(described.query.noise_multiplier.w / 2, None)
        return function(key, dataclasses.replace(
            described, query=dataclasses.replace(described.query, noise_multiplier=noise)), *rest)

    return changed


def under(name: str, other: str) -> Callable[[Any], Any]:
    """One release of a training has the key of another one."""
    def make(keys: Any) -> Any:
        def changed(root: Any, charged: bool) -> Any:
            made = keys(root, charged)
            return made._replace(**{name: getattr(made, other)})

        return changed

    return make


def of_the_exact_share(function: Any) -> Any:
    """Means of rows with a label are sums over their exact share, and not over the released one."""
    def changed(key: Any, described: Any, x: Any, y: Any, weight: Any, *rest: Any) -> Any:
        by, exact = function(key, described, x, y, weight, *rest), float(np.mean(np.sum(weight, 1)))
        return by._replace(mean=by.mean * by.labelled / exact, labelled=exact)

    return changed


def descriptions(table: Any, schema: Schema) -> list[Any]:
    """Returns what is passed to the releases of `train`; none is made, so nothing is compiled."""
    described = []

    def kept(key: Any, made: Any, problem: Any, start: Saddle, data: Any) -> Saddle:
        described.append(made)
        return start

    def rounds(key: Any, start: Saddle, data: Any, hyper: Any, algorithm: Any, *_: Any,
               **how: Any) -> Any:
        described.append(algorithm.mechanism(hyper))
        return types.SimpleNamespace(state=algorithm.init(start, hyper))

    with contextlib.ExitStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore", NoteWarning)
        patches.enter_context(mock.patch.object(linear, "fit", rounds))
        patches.enter_context(mock.patch.object(sums, "compiled_release", kept))
        train(table, schema, epsilon=20.0, delta=1e-3, key=KEY)
    return described


@made_releases.noted
def _nothing(key: Any, described: Any, number: Any, value: Any) -> Any:
    return value


def _rounds(key: Any, start: Saddle, data: Any, hyper: Any, algorithm: Any, *_: Any,
            **how: Any) -> Any:
    for part in algorithm.mechanism(hyper).answered():
        for number in range(2):
            _nothing(key, part, number, start)
    return runs.Run(algorithm.init(start, hyper), np.zeros((hyper.iterations, 1)))


@contextlib.contextmanager
def without_releases() -> Iterator[list[made_releases.Made]]:
    """Has trainings note what they would release; nothing is, so nothing is compiled."""
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (sums, "compiled_release",
         lambda key, made, problem, start, data: _nothing(key, made, 0, start)),
        (records, "release_group_losses",
         lambda key, made, *_: _nothing(key, made, 0, jnp.zeros(len(made.sizes)))),
        (linear, "fit", _rounds),
        (fair, "_trained", lambda key, start, data, hyper, *_: _rounds(
            key, start, data, hyper, jmm.sgda)))
    with contextlib.ExitStack() as held, warnings.catch_warnings():
        warnings.simplefilter("ignore", NoteWarning)
        for where, name, other in replaced:
            held.enter_context(mock.patch.object(where, name, other))
        yield held.enter_context(made_releases.collected())


def trainings() -> dict[str, Callable[[], Any]]:
    """Trainings of tables that make every release which there is."""
    how: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-3}
    made: dict[str, Callable[[], Any]] = {}
    for name, schema in table_attack.SCHEMAS.items():
        table, _ = table_attack.neighbours(0, "int64", schema.by_label)
        made[name] = functools.partial(train, table, schema, key=KEY, **how)
    rows = dataclasses.replace(table_attack.SCHEMAS["ranges"], owner=None, most=1)
    made["people"] = functools.partial(train, table, rows, people=2, key=KEY, **how)
    x = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    for name, bounds in (("bounds", (-1.0, 1.0)), ("no bounds", None)):
        model = PrivateAUCClassifier(bounds=bounds, random_state=0, **how)
        made[f"estimator, {name}"] = functools.partial(model.fit, x, x[:, 0] > 0)
    fairly = PrivateFairClassifier(bounds=(-1.0, 1.0), random_state=0, **how)
    return made | {"private groups": functools.partial(
        fairly.fit, x, x[:, 0] > 0, groups=x[:, 1] > 0)}


def shared_keys(name: str = "ranges") -> Finding:
    """Releases of a training that have the key, kind, place and number of another one."""
    with without_releases() as made:
        trainings()[name]()
    jax.effects_barrier()
    return Finding(float(len(made) - len({one[:4] for one in made})), 0.0)


def released(kind: str = "average") -> Finding:
    """Epsilon of all that is passed to the releases of `train`; 20 is asked for."""
    table, _ = table_attack.neighbours(0, "int64", fixed_label=False)
    described = descriptions(table, table_attack.SCHEMAS[kind])
    return Finding(jmm.epsilon(jmm.Sequence(parts=tuple(described)), 1e-3), 20.0)


def _moved_by_one(release: Callable[..., Any], clip: float, *records: np.ndarray) -> Finding:
    """How far a release moves with its first record, at first a zero, over the charged."""
    answers = []

    # a function of its own, as a bug is not in a program that was compiled before
    program = jax.jit(lambda key, made, problem, start, data: sums.release(
        key, made, jnp.int32(0), problem, start, data), static_argnames="problem")

    def kept(*args: Any) -> Any:
        answers.append(program(*args))
        return answers[-1]

    described = statistics.one_release(len(records[0]), clip, 1.0)
    with mock.patch.object(sums, "compiled_release", kept):
        for first in (0, 1):
            release(KEY, described, *(np.concatenate([first * x[:1], x[1:]]) for x in records))
    moved = np.linalg.norm(np.asarray(answers[1].w) - np.asarray(answers[0].w))
    return Finding(float(moved) * len(records[0]) / (2 * clip), 1.0)


def long_rows() -> Finding:
    """As `_moved_by_one`, of second moments of rows that are 2.8 long."""
    return _moved_by_one(statistics.release_second_moments, 1.0,
                         np.full((9, 1, 3), 2.0, np.float32), np.ones((9, 1), np.float32))


def without_the_labels_weight(psi_apart: Any) -> Any:
    """The distance of moments is that of a label whose part has the weight 1."""
    def changed(schema: Schema, features: bool = True) -> statistics.Apart:
        with mock.patch.object(statistics, "label_weight", return_value=1.0):
            return psi_apart(schema, features)

    return changed


def a_tenth_nearer(one_release: Any) -> Any:
    """A distance is stated a tenth too small."""
    def changed(population: int, clip: float, noise: Any = None, apart: Any = None) -> Any:
        return one_release(population, clip, noise, apart and apart._replace(
            distance=max(0.9 * apart.distance, clip)))

    return changed


def twice_over(gaussian: Any) -> Any:
    """A distance counts twice in the charge, (D / 2 C)^2 of mu instead of D / 2 C."""
    return lambda times, z, unit=costs.CLIP_NORM: gaussian(times, z * 2 / unit.moves, unit)


def _over_the_distance(release: Callable[..., Any], described: Any, records: int,
                       pair: Any) -> Finding:
    """How far a release moves on a pair of data sets with one key, over the described distance."""
    answers: list[Any] = []
    real = sums.compiled_release

    def kept(*args: Any) -> Any:
        answers.append(real(*args))
        return answers[-1]

    with mock.patch.object(sums, "compiled_release", kept):
        for data in pair:
            release(KEY, described, *data)
    moved = np.linalg.norm(np.asarray(answers[1].w, np.float64) - np.asarray(answers[0].w))
    return Finding(float(moved) * records / described.query.distance.w, 1 + 1e-5)


def opposite_cells() -> Finding:
    """As `_over_the_distance`, of moments of a person with all numbers at the other ends."""
    schema = Schema({f"x{k}": Number(-1, 1) for k in range(90)}, "y", target=Number(-1, 1))
    described = statistics.one_release(9, statistics.psi_length(schema), 1.0,
                                       statistics.psi_apart(schema))
    x, one = np.ones((9, 1, 91)), np.ones((9, 1))
    others = x.copy()
    others[0] = -1
    return _over_the_distance(
        lambda key, made, x: statistics.release_moments(key, made, x, x[..., 0], one, schema),
        described, 9, [(x,), (others,)])


def right_angles() -> Finding:
    """As `_over_the_distance`, of second moments of a person whose row turns by a right angle."""
    described = statistics.one_release(9, 1.0, 1.0, statistics.SECOND_APART)
    x = np.zeros((9, 1, 4), np.float32)
    x[0, 0, 0] = 1
    return _over_the_distance(
        lambda key, made, x: statistics.release_second_moments(key, made, x, np.ones((9, 1))),
        described, 9, [(x,), (np.roll(x, 1, 2),)])


def charged_of_a_distance() -> Finding:
    """The parameter mu that noise and distance of second moments have, over the charged one."""
    query = statistics.one_release(9, 1.0, 5.0, statistics.SECOND_APART).query
    charged = jmm.audit.signals.charged_signal(jmm.Repeat(query=query, times=1))
    return Finding(query.distance.w / 5.0 / charged, 1.0)


def labels_out_of_range() -> Finding:
    """As `_moved_by_one`, of the release that calibrates scores, with labels of 5."""
    return _moved_by_one(
        functools.partial(labels.release_calibration, prior=0.5), labels.CALIBRATION_CLIP,
        np.ones((9, 1)), np.full((9, 1), 5.0), np.ones((9, 1)))


def classes_out_of_range() -> Finding:
    """As `labels_out_of_range`, of three classes."""
    return _moved_by_one(
        functools.partial(labels.release_calibration, prior=np.full(3, 1 / 3)),
        labels.CALIBRATION_CLIP_OF_CLASSES, np.full((9, 1, 3), [4.0, 0.0, 0.0]),
        np.full((9, 1, 3), [0.0, 5.0, 0.0]), np.ones((9, 1)))


def moved() -> Finding:
    """The most that a release of `train` moves with one person, over what is charged for."""
    with tempfile.TemporaryDirectory() as folder:
        ratios = table_attack.worst(6, pathlib.Path(folder), ("int64", "negative"), ("average",))
    return Finding(max(ratios.values()), 1.0 + 1e-6)


def follows_from_the_release() -> Finding:
    """How far means move with a person's labels, if the release is the same; they may not."""
    schema, rng = table_attack.SCHEMAS["average"], np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (9, 2, schema.width)), rng.integers(0, 2, (9, 2))
    weights, made = [np.full((9, 2), 0.5), np.full((9, 2), 0.5)], []
    weights[1][0] = 0
    described = statistics.one_release(9, statistics.psi_length(schema), 1.0)
    with mock.patch.object(sums, "compiled_release", lambda key, described, problem, start, data:
                           Saddle(np.linspace(0.5, 1, len(start.w)) / 3, None)):
        for weight in weights:
            by = statistics.release_moments(KEY, described, x, y, weight, schema)
            made.append(np.hstack(by))
    return Finding(float(np.abs(made[1] - made[0]).max()), 0.0)


def records_of_a_person() -> Finding:
    """The most records that the rows of one person are in; one is charged for."""
    made = records.records(_OWNERS[:, None], np.zeros(len(_OWNERS)),
                           records.by_person(len(_OWNERS), _OWNERS, _ROWS // 2))
    return Finding(int(np.bincount(made.x[:, 0, 0].astype(int)).max()), 1.0)


def parted_persons() -> Finding:
    """Persons with rows held out and rows to train on; there may be none."""
    held = files.held_out(len(_OWNERS), _OWNERS, 0.3, 0).reshape(_PERSONS, _ROWS)
    return Finding(int(np.sum(held.any(1) & ~held.all(1))), 0.0)


# a release of `TrainingKeys`, and one whose key it must not have
_UNDER = (("calibration", "second_moments"), ("calibration", "moments"), ("calibration", "rounds"),
          ("second_moments", "moments"), ("moments", "rounds"), ("ranges", "rounds"))
# name, what it breaks, what is replaced and by what, detector, and what its number is
_MOVED, _ALL = "how far a release moves with a person over the charged", "epsilon of all releases"
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("integer owners rounded to floats", "persons: one record each", "name of a person",
     through_floats, moved, _MOVED),
    ("one person in a hundred is two records", "persons: one record each", "rows of persons",
     two_records_each_hundredth, records_of_a_person, "records of one person"),
    ("a row of one held-out person in fifty trains", "persons: held out or not", "held-out rows",
     row_of_a_fiftieth_trains, parted_persons, "persons on both sides"),
    ("second moments of rows not clipped", "sensitivity", "weight", plants.lifted, long_rows,
     _MOVED),
    ("calibration not clipped", "sensitivity", "weight", plants.lifted, labels_out_of_range,
     _MOVED),
    ("calibration of classes not clipped", "sensitivity", "weight", plants.lifted,
     classes_out_of_range, _MOVED),
    ("the label's weight not in the distance of moments", "sensitivity", "distance of moments",
     without_the_labels_weight, opposite_cells, _MOVED),
    ("second moments a tenth nearer than they are", "sensitivity", "description of a release",
     a_tenth_nearer, right_angles, _MOVED),
    ("a distance twice in the charge", "accountant: distance", "charge over a distance",
     twice_over, charged_of_a_distance, "mu of noise and distance over the charged"),
    *((f"{name.replace('_', ' ')} under the key of {other.replace('_', ' ')}",
       "one key for one release", "keys of a training", under(name, other), shared_keys,
       "releases with another one's key") for name, other in _UNDER),
    ("moments divided by the exact share of labels", "post-processing", "moments",
     of_the_exact_share, follows_from_the_release, "how far equal releases lead apart"),
    *(bug for aim, (name, labels) in _RELEASES.items() for label in labels for bug in (
        (f"{aim} not charged, {label}", "accountant: all that is released", "extra releases",
         without(name), functools.partial(released, _KINDS[label]), _ALL),
        (f"{aim} with half the noise, {label}", "standard deviation", aim, of_half_noise,
         functools.partial(released, _KINDS[label]), _ALL))),
)
