"""A certificate of a scorer: the worst group's share of wrong predictions, from rows held out.

The loss of a row is 1 if its prediction is wrong and 0 if not, so that nothing is clipped, and the
certificate is of the errors themselves: with groups cut by the label, of the worst share of errors
of one label in one group. A row without a label counts as wrong, so that the share among labelled
rows is no larger.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.accounting import calibrate_noise
from jaxminimax.apps.tables import records, scorer
from jaxminimax.base.types import Saddle
from jaxminimax.drivers.certificates import Certificate, certify
from jaxminimax.mechanism import Description, GroupLosses, Parallel
from jaxminimax.problems import HeldOut, ball, hold_out, worst_group

_SHARE = worst_group(lambda w, wrong: wrong, ball(1.0), lipschitz=1.0, bound=1.0)


class Apart(NamedTuple):
    """Rows of a table that are held out of the training, and what a certificate releases of them.

    Attributes:
      held: their places.
      losses: the description of what is released, calibrated like the training.
    """

    held: HeldOut
    losses: GroupLosses

    @property
    def others(self) -> np.ndarray:
        """The numbers of the rows that train."""
        return np.asarray(self.held.rest(np.arange(len(self.held.labels))))

    def read(self, held: records.Table) -> Any:
        """Everything that is read of the rows apart, as arrays of 32 bits."""
        charged = None if held.charged is None else held.charged.view(np.uint32)
        return self.held.labels.astype(np.int32), held.x, held.labels, charged


def together(training: Description, of: Apart | None) -> Description:
    """Describes training and certificate, if there is one, on disjoint rows."""
    return training if of is None else Parallel(parts=(training, of.losses))


def apart(groups: records.Groups | None, share: float | None, *, epsilon: float, delta: float,
          persons: bool) -> Apart | None:
    """Holds rows of every group out of a training.

    Args:
      groups: of all rows; public.
      share: of each group's rows, in (0, 1); None for no certificate.
      epsilon: of the training, and of the certificate.
      delta: of both.
      persons: whether a person may have several rows.

    Raises:
      ValueError: without groups, for persons with several rows, or a share that leaves no row of a
        group on a side.
    """
    if share is None:
        return None
    if groups is None:
        raise ValueError("A certificate is of the worst group: give the schema groups.")
    if persons:
        raise ValueError("Rows are held out one by one: a certificate is for tables where a record "
                         "is a row, without owners and with people=1.")
    held = hold_out(np.where(groups.number < len(groups.names), groups.number, -1), share)
    return Apart(held, calibrate_noise(GroupLosses(bound=1.0, sizes=held.sizes), epsilon, delta))


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
    wrong = np.zeros(len(of.held.labels), np.float32)
    wrong[of.held.rows] = ((scores > 0) != (y > 0.5)) | np.isnan(y)
    certificate: Certificate = certify(
        key, of.losses, Saddle(jnp.zeros(()), ()), wrong, _SHARE, held_out=of.held,
        training=made.described, delta=made.statement.delta, unit=unit)
    return dataclasses.replace(made, certificate=certificate)
