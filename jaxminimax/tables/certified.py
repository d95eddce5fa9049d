"""A certificate of a scorer: the worst group's share of wrong predictions, from rows held out.

The loss of a row is 1 if its prediction is wrong and 0 if not, so that nothing is clipped, and the
certificate is of the errors themselves: with groups cut by the label, of the worst share of errors
of one label in one group.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.accounting import calibrate_noise
from jaxminimax.base.types import Saddle
from jaxminimax.drivers.certificates import Certificate, certify
from jaxminimax.mechanism import Description, GroupLosses, Parallel
from jaxminimax.problems import HeldOut, ball, hold_out, worst_group
from jaxminimax.tables import records, scorer

_SHARE = worst_group(lambda w, wrong: wrong, ball(1.0), lipschitz=1.0, bound=1.0)


class Apart(NamedTuple):
    """Rows of a table that are held out of the training, and what a certificate releases of them.

    Attributes:
      held_out: places among the rows that are in a group.
      inside: numbers of these rows.
      rest: which rows train, `[n]` of bool.
      losses: the description of what is released, calibrated like the training.
    """

    held_out: HeldOut
    inside: np.ndarray
    rest: np.ndarray
    losses: GroupLosses

    @property
    def rows(self) -> np.ndarray:
        """The numbers of the rows that are held out."""
        return self.inside[self.held_out.rows]

    def with_training(self, training: Description) -> Description:
        """Describes training and certificate, on disjoint rows."""
        return Parallel(parts=(training, self.losses))


def apart(groups: records.Groups | None, share: float, *, epsilon: float, delta: float,
          persons: bool) -> Apart:
    """Holds rows of every group out of a training.

    Args:
      groups: of all rows; public.
      share: of each group's rows, in (0, 1).
      epsilon: of the training, and of the certificate.
      delta: of both.
      persons: whether a person may have several rows.

    Raises:
      ValueError: without groups, for persons with several rows, or a share that leaves no row of a
        group on a side.
    """
    if groups is None:
        raise ValueError("A certificate is of the worst group: give the schema groups.")
    if persons:
        raise ValueError("Rows are held out one by one: a certificate is for tables where a record "
                         "is a row, without owners and with people=1.")
    inside = np.flatnonzero(groups.number < len(groups.names))
    held = hold_out(groups.number[inside], share)
    rest = np.ones(len(groups.number), bool)
    rest[inside[held.rows]] = False
    losses = calibrate_noise(GroupLosses(bound=1.0, sizes=held.sizes), epsilon, delta)
    return Apart(held, inside, rest, losses)


def certified(key: jax.Array, made: scorer.Scorer, x: np.ndarray, y: np.ndarray, of: Apart, *,
              unit: str) -> scorer.Scorer:
    """Returns the scorer with a certificate of the worst group's share of wrong predictions.

    Args:
      key: for this release only.
      made: trained on the other rows.
      x: features in [-1, 1] of the rows that are held out, `[h, d]`.
      y: their labels, in {0, 1}, `[h]`.
      of: their places and the description.
      unit: what one record is, for the statement.
    """
    scores = records.scaled(x, made.moments, made.floor) @ made.weights
    wrong = np.zeros(of.held_out.population, np.float32)
    wrong[of.held_out.rows] = (scores > 0) != (y > 0.5)
    certificate: Certificate = certify(
        key, of.losses, Saddle(jnp.zeros(()), ()), wrong, _SHARE, held_out=of.held_out,
        training=made.described, delta=made.statement.delta, unit=unit)
    return dataclasses.replace(made, certificate=certificate)
