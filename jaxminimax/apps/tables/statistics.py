"""Statistics of a table that are released before training, and the preconditioner made of them.

**Ranges.** One release of all columns' histograms over fixed cells: eight to a decade from 10^-2 to
10^6 on either side of 0, one around 0, one beyond either end, one for what is missing. A record
sits in one cell of each of c columns, a vector of norm sqrt(c), which is its clip norm. Its numbers
are at least 0 and add up to at most 1 in a column, so two records p and p' have <p, p'> >= 0 and
are at most sqrt(2 c) apart, which is charged. (A person's shares of cells are no different.) A
range is from the 1st to the 99th percentile of the cells whose noisy share stands out: above what
noise alone reaches in any cell of any column once in a hundred runs, as one empty cell far out
would stretch the range by decades. If no cell does, it is the fullest one and its neighbours.
Everything after the release is post-processing.

**Moments.** One release of means and second moments puts features on one scale. psi of a row: x_j
and x_j^2 - 1 for a number in [-1, 1]; x_j - 1/2 for what is 0 or 1; e - 1/k for the k places e of a
category, one of which is 1 or none; y - 1/2 for a label of two values, and what `labels` says for
other ones. For a number, and for a category with k >= 2 that has one of its values or none,

    x^2 + (x^2 - 1)^2 = 1 - x^2 (1 - x^2) <= 1,
    (1 - 1/k)^2 + (k - 1) / k^2 = 1 - 1/k,    k / k^2 = 1/k <= 1 - 1/k,

so |psi|^2 <= c^2 = numbers + 1/4 flags + sum_categories (1 - 1/k) + the label's length (1/4 of two
values), the clip never binds, and the mean of psi over persons moves by at most 2 c / n when one of
them is replaced. (Of a person with several rows it is their mean, which is no longer.)

*It moves by less, D / n.* A person's vector is in the convex hull of the psi of rows and of 0, so
two of them are at most as far apart as two of these points: a distance is convex in either. Blocks
of single columns add their squared distances. Two values of a category are sqrt(2) apart, and a
value and none 1. A flag, or two values, 1. For numbers with a = |x - x'|, |x + x'| <= 2 - a, so
that

    |psi - psi'|^2 <= a^2 (1 + (2 - a)^2) <= 4,

as it increases up to a = 2. With a flag of missing cells, one present and one missing cell have x^2
+ x^4 + 1 <= 3, and 4 stays. No block is longer than its distance, with 1/4 to spare, so that 0 and
what stands for rows without a label, below, are no farther from psi. In all

    D^2 = 4 numbers + flags that are columns + 2 categories + a^2 D_label^2,

with D_label^2 = 1 for two values, 2 for several, 4 for a number. The release is charged for D.

*The label's weight.* The label is one coordinate among many, and its mean and variance scale all
that is trained. So its part of psi is multiplied by a public a >= 1, so large that it has a tenth
of the features' squared distance, and the released numbers are divided by it. The label's part of
c^2 and D^2 is a^2 times what it was: noise and charge cover it, and the noise of the label's mean
is s / a.

A row without a label adds no psi: the sum of a person's weights is the share w of the rows with
one. A further number, (1 - w) / 2, tells how many lack it. So a person's vector is w times a mean
of psi, and (1 - w) times a vector of length 1/2 in a place of its own. As c >= 1/2, it is no longer
than c: clip norm, noise and charge are those of a table with all labels. The released mean is (sum
of psi) / n = share of labels * mean of psi over rows with one, so dividing by the released share,
which is post-processing, gives means of rows that have a label. A share is taken for 1 unless it
lies 3 standard deviations below, as its noise would reach all means, and for 0.05 at least.

**Second moments.** Scaled rows are u with |u| <= 1, and a constant 1 after them
(`records.scaled`). One release of

    M = mean over persons of sum_k weight_k u_k u_k^T,     |u u^T| = |u|^2 <= 1,

has a clip norm of 1, which never binds, and moves by at most sqrt(2) / n when a person is replaced:
parts A and B of two persons are positive semi-definite with norms of at most 1, so <A, B> =
tr(A^(1/2) B A^(1/2)) >= 0 and |A - B|^2 = |A|^2 + |B|^2 - 2 <A, B> <= 2. Clipping, which multiplies
by a number in [0, 1], keeps that. All d^2 numbers get noise of standard deviation s = noise
multiplier / n. The symmetric part of that noise has the law of the noise on the products u_i u_j, i
<= j, with those of i < j times sqrt(2); its spectral norm is about s sqrt(2 d).

A loss whose second derivative by x w is at most 2 h has the Hessian 2 h diag(M, 1) at most, as rows
are centred. Steps along P g for a released gradient g, with

    P = (h diag(M_+, 1) + r I)^-1,     M_+: M without its negative eigenvalues,

are post-processing. All directions of curvature above r converge at one rate, and one without
curvature moves by g / r, whatever d is. Heavy-ball steps with momentum 1/2 converge up to three
times the curvature that P stands for. The derivative is below its bound on average, so h is half of
it: 1/8 of the logistic loss, where sigma (1 - sigma) is at most 1/4.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.accounting import calibrate_shares
from jaxminimax.apps.tables import labels, scorer
from jaxminimax.apps.tables.columns import Category, Charged, Number
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.base.tree import EXACT
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.mechanism import Description, Query, Repeat
from jaxminimax.releases import sums

# of the cells, ascending: eight in every decade from 0.01 to 10^6, on both sides
EDGES = np.sort(np.outer((-1.0, 1.0), 10.0 ** (np.arange(-16, 49) / 8)), axis=None)
CELLS = len(EDGES) + 2  # beyond either end, and what is missing


class Apart(NamedTuple):
    """A bound on how far apart the vectors of two records lie, and why it holds, for statements."""

    distance: float
    because: str


def one_release(population: int, clip: float, noise_multiplier: float | None = None,
                apart: Apart | None = None) -> Repeat:
    """Describes one release of the mean over all records of a vector no longer than `clip`."""
    noise = None if noise_multiplier is None else Saddle(noise_multiplier, None)
    # exact products and sums of weights in float32 are a little more than their bounds
    stated: dict[str, Any] = {} if apart is None else {"because": apart.because, "distance": Saddle(
        min(apart.distance * (1 + 2.0**-16), 2 * clip), None)}
    return Repeat(query=Query(clip=Saddle(clip, None), population=population,
                              noise_multiplier=noise, **stated), times=1)


def shared_release(population: int, clip: float, share: float, epsilon: float, delta: float,
                   alongside: tuple[Description, ...] = (), people: int = 1,
                   apart: Apart | None = None) -> Repeat:
    """Describes `one_release` that takes a share of what `alongside` leaves of (epsilon, delta)."""
    (described,) = calibrate_shares((one_release(population, clip, apart=apart),), (share,),
                                    epsilon, delta, alongside=alongside, people=people)
    return described


def deviation(described: Repeat) -> float:
    """Returns the standard deviation of the noise in each number of `one_release`."""
    query = described.query
    return float(query.clip.w * query.noise_multiplier.w / query.population)


# --- ranges ---


def _shares(z: Saddle, record: tuple[jax.Array, jax.Array]) -> Saddle:
    cell, weight = record
    return Saddle(jnp.einsum("r,rck->ck", weight, jax.nn.one_hot(cell, CELLS), precision=EXACT),
                  None)


def ranges_query(population: int, schema: Schema, epsilon: float, delta: float,
                 people: int = 1) -> tuple[Repeat, ...]:
    """Describes the release that the charged columns of a schema need: none, or one with noise.

    Args:
      population: n, records.
      schema: of the table.
      epsilon: of everything that is to be released; the histograms take a tenth of mu^2.
      delta: in (0, 1).
      people: k, if any k records of one person may differ.

    Raises:
      ValueError: for numbers out of range, or more cells than fit into memory.
    """
    if not schema.charged:
        return ()
    size = population * len(schema.charged) * CELLS
    largest = 10**9  # numbers that the release of ranges holds at once
    if size > largest:
        raise ValueError(f"charged ranges of {len(schema.charged)} columns of {population} records "
                         f"need histograms of {size:.2g} numbers, above {largest:.2g}: declare "
                         "ranges of some columns, or leave some out.")
    # a record is in one cell of every column
    return (shared_release(
        population, math.sqrt(len(schema.charged)), 0.1, epsilon, delta, people=people,
        apart=Apart(math.sqrt(2 * len(schema.charged)), "a record's shares of cells are at least 0 "
                    "and add up to 1 at most in each column.")),)


def least_share(described: Repeat) -> float:
    """Returns the share of records from which on a cell counts."""
    # an empty cell of any column counts with a chance of 1 %
    sure = -scipy.special.ndtri(0.01 / (CELLS * max(1.0, described.query.clip.w**2)))
    return float(sure * deviation(described))


def with_ranges(schema: Schema, ranges: Sequence[Number]) -> Schema:
    """Puts released ranges in place of the charged columns of a schema, in their order."""
    ranges_in_order = iter(ranges)
    columns = {name: column.within((ends := next(ranges_in_order)).low, ends.high)
               if isinstance(column, Charged) else column
               for name, column in schema.columns.items()}
    return dataclasses.replace(schema, columns=columns)


def cells(values: np.ndarray) -> np.ndarray:
    """Returns the number of each value's cell, int32 in its shape; NaN has the last one."""
    bins = np.searchsorted(EDGES, values, side="right")
    return np.where(np.isnan(values), CELLS - 1, bins).astype(np.int32)


def release_ranges(key: jax.Array, described: Repeat, values: np.ndarray,
                   weight: np.ndarray) -> tuple[Number, ...]:
    """Releases a range for each column.

    Args:
      key: a key of its own.
      described: by `ranges_query`.
      values: `[n, rows, columns]`, NaN where they are missing.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
    """
    columns = values.shape[-1]
    start = Saddle(np.zeros((columns, CELLS), jnp.result_type(float)), ())
    answer = sums.compiled_release(key, described, Problem(_shares), start,
                                   (cells(values), np.asarray(weight, np.float32)))
    return tuple(_range(row, least_share(described))
                 for row in np.asarray(answer.w, np.float64)[:, :-1])


def _range(shares: np.ndarray, smallest_share: float) -> Number:
    """Turns noisy shares of a column's cells into its range."""
    ends = np.concatenate([[EDGES[0]], EDGES, [EDGES[-1]]])  # cell k is [ends[k], ends[k + 1])
    shown_shares = np.where(shares > smallest_share, shares, 0.0)
    if not shown_shares.any():
        middle = int(np.argmax(shares))
        low, high = max(middle - 1, 0), min(middle + 1, len(shares) - 1)
    else:
        cumulative = np.cumsum(shown_shares) / shown_shares.sum()
        tail = 0.01  # share of the values that are left outside at either end
        low = int(np.searchsorted(cumulative, tail))
        high = int(np.searchsorted(cumulative, 1 - tail))
    if ends[high + 1] <= ends[low]:  # all values beyond one end
        low, high = max(low - 1, 0), min(high + 1, len(shares) - 1)
    return Number(float(ends[low]), float(ends[high + 1]))


# --- moments ---


def psi_length(schema: Schema, features: bool = True) -> float:
    """Returns c, the longest psi of a row; of the label alone without the features."""
    columns = schema.columns.values() if features else ()
    return math.sqrt(sum(column.length for column in columns)
                     + label_weight(schema, features) ** 2 * labels.label_of(schema).length)


def psi_apart(schema: Schema, features: bool = True) -> Apart:
    """Returns D, how far apart the psi of two persons are at most, clipped to `psi_length`."""
    columns = schema.columns.values() if features else ()
    square = (sum(column.squared_distance for column in columns)
              + label_weight(schema, features) ** 2 * labels.label_of(schema).squared_distance)
    return Apart(math.sqrt(square), "every column adds centred numbers of public ranges, whose "
                                    "squared distances add up.")


def label_weight(schema: Schema, features: bool = True) -> float:
    """Returns a >= 1, by which the label's part of psi is multiplied; public.

    The label's part of D^2 is then a tenth of the features' at least.
    """
    of_features = sum(column.squared_distance for column in schema.columns.values()) * features
    return max(1.0, math.sqrt(
        0.1 * of_features / labels.label_of(schema).squared_distance))


def label_deviation(described: Repeat, schema: Schema, features: bool = True) -> float:
    """Returns the standard deviation of the noise in the label's released mean."""
    return deviation(described) / label_weight(schema, features)


def _layout(schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centre of each feature in psi, and whether its square is another number."""
    shift = np.concatenate([
        np.full(c.width, 1 / max(c.width, 2)) if isinstance(c, Category)
        else np.where(c.squares, 0.0, 0.5) for c in schema.columns.values()])
    return shift, np.concatenate([c.squares for c in schema.columns.values()])


def release_moments(key: jax.Array, described: Repeat, x: np.ndarray, y: np.ndarray,
                    weight: np.ndarray, schema: Schema, features: bool = True) -> scorer.Moments:
    """Releases the noisy means of features, of their squares and of labels, of rows with a label.

    Args:
      key: a key of its own, not the run's.
      described: `one_release` of vectors of `psi_length`.
      x: features in [-1, 1], `[n, rows, d]`, or with further columns, which are not read.
      y: labels as the schema reads them, `[n, rows, ...]`.
      weight: of a person's rows, `[n, rows]`; they add up to 1 at most.
      schema: of the features and the label.
      features: whether they are released too; without them they stay as they are.
    """
    width, label = schema.width, labels.label_of(schema)
    shift, squared = _layout(schema)
    places = np.flatnonzero(squared)
    label_factor = label_weight(schema, features)
    problem = _psi(label, tuple(shift.tolist()) if features else None, tuple(places.tolist()),
                   label_factor)
    start = Saddle(np.zeros(label.numbers + features * (width + len(places)) + 1,
                            jnp.result_type(float)), ())
    answer = np.asarray(sums.compiled_release(key, described, problem, start,
                                              jax.device_put((x, y, weight))).w, np.float64)
    absent = float(answer[-1]) if answer[-1] > 3 * deviation(described) else 0.0
    labelled = max(1 - 2 * absent, 0.05)
    of_label, answer = np.split(answer[:-1] / labelled, [label.numbers])
    prior = label.prior(of_label / label_factor)
    if not features:
        return scorer.Moments(np.zeros(width), np.ones(width), prior, labelled)
    mean = answer[:width] + shift
    second = mean.copy()  # of 0 and 1
    second[places] = answer[width:] + 1
    return scorer.Moments(mean, second, prior, labelled)


@functools.lru_cache(maxsize=32)  # one function for equal columns, so that it is compiled once
def _psi(label: labels.Label, shift: tuple[float, ...] | None, places: tuple[int, ...],
         label_factor: float) -> Problem:
    """Makes psi and the number of what has no label an operator.

    Psi is that of the label times its factor, alone or with the features less `shift` and squares.
    """

    def psi(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array]) -> Saddle:
        x, y, weight = record
        parts = [label_factor * statistic for statistic in label.psi(y)]
        if shift is not None:
            x = x[:, : len(shift)]
            parts += [x - jnp.asarray([shift], x.dtype), x[:, np.array(places, int)] ** 2 - 1]
        mean = jnp.matmul(weight, jnp.concatenate(parts, 1), precision=EXACT)
        return Saddle(jnp.append(mean, (1 - jnp.sum(weight)) / 2), None)

    return Problem(psi)


# --- second moments of scaled rows ---


def _form(w: jax.Array, v: PyTree, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    """sum_k weight_k u_k^T W u_k, whose gradient by W, `[d d]`, is a person's part of M."""
    x, weight = record
    u = x[:, :-1]
    forms = jnp.sum(jnp.matmul(u, w.reshape(u.shape[-1], -1), precision=EXACT) * u, -1)
    return jnp.matmul(weight, forms, precision=EXACT)


_SECOND = Problem(saddle_operator(_form))
SECOND_APART = Apart(math.sqrt(2), "parts of second moments are positive semi-definite, no longer "
                                   "than 1.")


def least_ridge(width: int, population: int, noise_multiplier: float, half: float) -> float:
    """Returns the r from which on the noise of M makes no step too long; `half`: h."""
    # half as much again as what the noise of M may take away from the curvature
    return 1.5 * half * noise_multiplier / population * math.sqrt(2 * width)


def release_second_moments(key: jax.Array, described: Repeat, x: np.ndarray,
                           weight: np.ndarray) -> np.ndarray:
    """Releases M, symmetric, float64 `[d, d]`.

    Args:
      key: a key of its own, not the run's.
      described: `statistics.one_release` of vectors of length 1.
      x: scaled rows, `[n, rows, d + 1]`.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
    """
    width = x.shape[-1] - 1
    # in one row: programs for small matrices take XLA three times as long to compile
    start = Saddle(np.zeros(width**2, np.float32), ())
    flat = sums.compiled_release(key, described, _SECOND, start, jax.device_put((x, weight))).w
    noisy = np.asarray(flat, np.float64).reshape(width, width)
    return (noisy + noisy.T) / 2


def preconditioner(second: np.ndarray, ridge: float, half: float) -> np.ndarray:
    """Returns P, float32 `[d + 1, d + 1]`, of a released M, of r >= `least_ridge`, and of h."""
    full = np.eye(len(second) + 1)
    full[:-1, :-1] = second
    values, vectors = np.linalg.eigh(full)
    return np.asarray((vectors / (half * np.maximum(values, 0.0) + ridge)) @ vectors.T, np.float32)


def variances(squares: Any, moments: scorer.Moments, floor: float | None,
              described: Repeat) -> tuple[np.ndarray, np.ndarray]:
    """Returns features' variances by the diagonal of M, and their noise, both `[d]`.

    They are those of rows that have a label.

    Cut rows make a variance smaller. Where `moments` has other means than the data, it is larger by
    the square of the difference.

    Args:
      squares: the diagonal of a released M.
      moments: the released ones that rows were scaled by.
      floor: least variance that a feature was divided by.
      described: the release of M.
    """
    divided = scorer.spread(moments, floor)[1] ** 2 / moments.labelled
    return divided * np.asarray(squares), divided * deviation(described)
