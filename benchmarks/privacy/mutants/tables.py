"""Planted bugs of tables, and what catches them: rows of a person, rows held out, and charges."""

import dataclasses
import numbers
import pathlib
import tempfile
from typing import Any

import jax
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.attacks import table as table_attack
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.tables import files, records

_PERSONS, _ROWS = 300, 4
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


def without_second_moments(_: Any) -> Any:
    """The release of rows' second moments is not charged with the run."""
    def changed(self: Any) -> tuple[Any, ...]:
        return (*self.alongside, self.moments)

    return changed


def of_half_noise(release_second_moments: Any) -> Any:
    """Second moments have half of the noise that is charged."""
    def changed(key: Any, described: Any, *rows: Any) -> Any:
        noise = Saddle(described.query.noise_multiplier.w / 2, None)
        return release_second_moments(key, dataclasses.replace(
            described, query=dataclasses.replace(described.query, noise_multiplier=noise)), *rows)

    return changed


def released() -> Finding:
    """Epsilon of all that `train` releases, by what is passed to releases; 20 is asked for."""
    table, _ = table_attack.neighbours(0, "int64", fixed_label=False)
    made = table_attack.releases(table, table_attack.SCHEMAS["average"], jax.random.key(0))
    described = list({repr(one): one for one, _ in made}.values())
    return Finding(jmm.epsilon(jmm.Sequence(parts=tuple(described)), 1e-3), 20.0)


def moved() -> Finding:
    """The most that a release of `train` moves with one person, over what is charged for."""
    with tempfile.TemporaryDirectory() as folder:
        ratios = table_attack.worst(6, pathlib.Path(folder), ("int64", "negative"), ("average",))
    return Finding(max(ratios.values()), 1.0 + 1e-6)


def records_of_a_person() -> Finding:
    """The most records that the rows of one person are in; one is charged for."""
    made = records.records(_OWNERS[:, None], np.zeros(len(_OWNERS)), _OWNERS, _ROWS // 2)
    return Finding(int(np.bincount(made.x[:, 0, 0].astype(int)).max()), 1.0)


def parted_persons() -> Finding:
    """Persons with rows held out and rows to train on; there may be none."""
    held = files.held_out(len(_OWNERS), _OWNERS, 0.3, 0).reshape(_PERSONS, _ROWS)
    return Finding(int(np.sum(held.any(1) & ~held.all(1))), 0.0)
