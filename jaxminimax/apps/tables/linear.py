"""Stages of the training of a private linear scorer: moments, rounds, calibration.

A stage is a function of a `Run` and of what earlier stages released. Everything was charged before.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxminimax.accounting import statement
from jaxminimax.apps.tables import labels, notes, records, rule, statistics
from jaxminimax.apps.tables.preparation import Prepared, names_of
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import Moments, Scorer
from jaxminimax.base import programs
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.drivers.long_runs import fit
from jaxminimax.releases import release_keys


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A training that was charged, and what its releases read.

    Attributes:
      prepared: what is released.
      keys: of its releases.
      schema: with all ranges.
      rows: of every person; features are scaled, and labels centred, in place.
      scaled_out: where scaled features go, `[n, rows, d + 1]`; `rows.x` lie there, too.
      once: `once(name, make)` is what `make` releases, or has released before; see `Unfinished`.
      driver: for `fit`.
      stop_on_notes: whether notes on the released moments end it.
    """

    prepared: Prepared
    keys: release_keys.TrainingKeys
    schema: Schema
    rows: records.Records
    scaled_out: np.ndarray
    once: Callable[[str, Callable[[], PyTree]], PyTree]
    driver: Mapping[str, Any]
    stop_on_notes: bool = False

    @property
    def scaling(self) -> rule.Defaults:
        """The settings of the moments."""
        return self.prepared.settings.scaling

    def moments(self) -> Moments:
        """Releases the moments of features and labels.

        Raises:
          StoppedOnNotesError: with `stop_on_notes`, where they make a note.
        """
        moments = Moments.from_json(self.once("moments", lambda: statistics.release_moments(
            self.keys.moments, self.scaling.moments, self.scaled_out, self.rows.y,
            self.rows.weight, self.schema, self.scaling.standardise).to_json()))
        if self.stop_on_notes and (noted := self._noted(moments)):
            raise notes.StoppedOnNotesError(" ".join(map(str, noted)))
        return moments

    def _noted(self, moments: Moments, of_rows: Any = None) -> tuple[notes.Note, ...]:
        return notes.after(self.schema, moments, statistics.deviation(self.scaling.moments),
                           features=self.scaling.standardise, of_rows=of_rows,
                           label_deviation=self.scaling.label_deviation)

    def scaled(self, moments: Moments) -> np.ndarray:
        """Scales features in place, `[n, rows, d + 1]`."""
        return records.scaled(self.rows.x, *self.scaling.divisors(moments), self.scaled_out)

    def scorer(self, weights: np.ndarray, moments: Moments, state: Any,
               group_losses: dict[str, float] | None = None,
               variances: tuple[np.ndarray, np.ndarray] | None = None) -> Scorer:
        """Returns the scorer with its statement and notes.

        Args:
          weights: `[d + 1, ...]`.
          moments: the released ones.
          state: the last one of the rounds.
          group_losses: as released; None for none.
          variances: of features, by the second moments of rows; None without them.
        """
        prepared, settings = self.prepared, self.prepared.settings
        public = () if prepared.groups is None else prepared.groups.assumed
        stated = statement(settings.algorithm, settings.hyper, state, delta=self.scaling.delta,
                           alongside=settings.extra(), unit=prepared.unit,
                           people=prepared.people, attack_bounds=True,
                           assumed=(*prepared.assumed, *public, settings.explain()))
        stated = dataclasses.replace(stated, parts=names_of(settings.named()))
        mistakes = self._noted(moments, variances)
        notes.warn(mistakes)
        return Scorer(self.schema, weights, *self.scaling.divisors(moments), stated.to_json(),
                      settings.mechanism(), group_losses, (*prepared.notes, *mistakes))


def train_linear(run: Run) -> Scorer:
    """Trains a private linear scorer by settings of `rule.defaults`."""
    settings, rows = run.scaling, run.rows
    label, moments = settings.label, run.moments()
    weight, weighted_moments = rows.weight, moments
    if run.prepared.class_weight is not None:
        weight, weighted_moments = records.weighted(rows, moments, run.prepared.class_weight)
    y = records.in_blocks(lambda y: label.target(y, moments, settings.label_floor), rows.y, rows.y)
    data = (run.scaled(moments), y, np.asarray(weight, np.float32))
    hyper, variances = _preconditioned(run, moments, data)
    state = _rounds(run, label.start(rows.x.shape[-1], weighted_moments), hyper, data)
    w = np.asarray(state.average.w, np.float64)
    w = _calibrated(run, w, data, weighted_moments.prior)
    group_losses = None
    if (losses := settings.losses) is not None:
        group_losses = run.once("losses", lambda: records.losses_of(
            run.keys.group_losses, losses, w, data, run.prepared.groups))
    return run.scorer(label.finished(w, moments, settings.label_floor), moments, state,
                      group_losses, variances)


def _preconditioned(run: Run, moments: Moments, data: PyTree) -> tuple[
        Any, tuple[np.ndarray, np.ndarray] | None]:
    """Returns the settings of the rounds by released second moments, and features' variances."""
    settings, second_moments = run.scaling, run.scaling.matrix
    if second_moments is None:
        return settings.hyper, None

    def made() -> dict[str, Any]:
        second = statistics.release_second_moments(
            run.keys.second_moments, second_moments, data[0], data[2])
        # P is saved, as another machine may have other eigenvectors in the last digits
        return {"matrix": statistics.preconditioner(
            second, settings.ridge / settings.label.growth(moments),
            settings.label.curvature).tolist(), "squares": np.diag(second).tolist()}

    saved = run.once("preconditioner", made)
    hyper = dataclasses.replace(settings.hyper, preconditioner=Saddle(
        np.array(saved["matrix"], np.float32), None))
    return hyper, statistics.variances(saved["squares"], *settings.divisors(moments),
                                       second_moments)


def _rounds(run: Run, start: np.ndarray, hyper: Any, data: PyTree) -> Any:
    """Returns the last state of all rounds, on the average record or on groups."""
    settings = run.scaling
    if settings.method == "average":
        problem: Any = settings.label.problem
        read = jax.device_put(data)  # where the host's memory is the device's, as it lies
    else:
        start, problem = np.zeros_like(start), settings.label.group_problem
        read = run.prepared.groups.arranged(data)
    with programs.briefly(programs.is_brief(read, start, hyper.iterations)):
        return fit(run.keys.rounds, Saddle(jax.device_put(start), ()), read, hyper,
                   settings.algorithm, problem, delta=settings.delta, alongside=settings.extra(),
                   **run.driver).state


def _calibrated(run: Run, w: np.ndarray, data: PyTree, prior: float | np.ndarray) -> np.ndarray:
    """Returns weights whose scores are log-odds, by a release, where the settings have one."""
    calibration = run.scaling.line
    if calibration is None:
        return w
    (x, y, weight), store = data, run.prepared.table.store
    scores = records.in_blocks(lambda x: x @ np.float32(w), store.zeros(*y.shape), x)
    intercept, slope = run.once("line", lambda: labels.release_calibration(
        run.keys.calibration, calibration, scores, y, weight, prior, store))
    w = slope * w
    w[-1] += intercept
    return w
