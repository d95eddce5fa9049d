"""The kinds of labels, of two values, of several, or a number: what each one changes in training.

Rows x of scaled features are at most sqrt(2) long, and a clip norm C costs the noise 2 C / (n mu').

**Two values.** Logistic loss. An undecided record's gradient, of residual 1/2, is sqrt(1/2) long,
which is the clip norm. The loss has a curvature of at most |x|^2 / 4 = 1/2.

**K values.** The loss is -ln p_y of p = softmax(x W), `[d + 1, K]` weights, of which all K columns
are released together. One record's gradient is the matrix x (p - e_y)^T, of length

    |x| |p - e_y| <= sqrt(2) sqrt(2) = 2,

as |p - e_y|^2 = |p|^2 - 2 p_y + 1 <= 2. An undecided record, p = 1/K, has sqrt(2) sqrt(1 - 1/K),
which is the clip norm: at half of it the log-loss is much worse, and at 2, which no record reaches,
noise is larger for no gain. Only differences of logits count. Their noise is sqrt(2) times that of
one logit, so the time of the gradient flow is sqrt(2) times shorter than for two values and an
equal clip norm. The Hessian of a record is (diag(p) - p p^T) x x^T, and diag(p) - p p^T <= 1/2, so
one preconditioner serves all K columns, and a plain round may stand for half the time. Of K equal
classes that matrix is about 1 / K, so that many classes need more time: with the released shares q,
preconditioned steps get 1 / (3 sum q_k^2) of the time, at least 1. It was found on digits and on
tables of unequal classes, where more time is more noise. With K = 2 the difference of the logits
would follow the logistic model exactly, noise included: it is the model of two values, and schemas
have only that one.

**A number.** The label is mapped to y in [-1, 1] by its range, then centred and divided by its
released moments, with a floor of its own: u = (y - m) / s. The loss is Huber's, r^2 / 2 of
residuals r = x w - u up to `BEND` and linear beyond. A record's gradient is min(max(r, -h), h) x
with h = `BEND`, so it is at most sqrt(2) h long, which is the clip norm: it never binds, and
records far off count no more than others. The curvature is at most |x|^2 = 2. A label has the
variance 1, and noise g in a weight adds up to g^2 to that of the scores, however many columns there
are. So g is half of the other labels' 0.7, and the time does not grow with the columns.

**Moments.** Labels are in the one release of means, centred: y - 1/2 of two values, of squared
length 1/4; e_y - 1/K of several, of squared length 1 - 1/K; y and y^2 - 1 of a number, at most 1
together, as `statistics` shows. Rows without a label have weight 0 there and in all that follows,
so that they add 0 to gradients and to calibration.

**Calibration.** One more release sets the slope of a trained scorer, and of two values a shift.
Training that stops early makes scores too small, and noise in weights makes them too large. So
scores s become a + b s, by one Newton step from a = 0, b = 1 on the logistic loss of the training
records. (Platt, 1999, has these two numbers.) With p = sigma(s), c the log-odds of the released
share of positives and t = (s - c) / 2, cut to [-1, 1], the step needs the mean over persons of

    psi = (y - p, (y - p) t, h, h t, h t^2),     h = p (1 - p).

With q = |y - p|, |psi|^2 <= 2 q^2 + 3 q^2 (1 - q)^2, which increases in q up to 2 at q = 1. So the
clip norm sqrt(2) never binds, and the mean moves by at most 2 sqrt(2) / n when a person is
replaced. What follows is post-processing: eigenvalues of the noisy Hessian are taken as 0 at least,
and three standard deviations of the noise are added to them, so that noise alone moves little. A
step to a slope 1 + u below 1 goes to 1 / (1 - u), as Newton's steps from too large scores go too
far. So the slope stays positive: the order of scores, and with it the AUC, is the same.

**K classes** have one slope: scores s, `[K]`, become c + b (s - c), with c the logarithms of the
released shares. With p = softmax(s), and t = (s - c) / 2 less its mean, divided by its largest
absolute value where that is above 1, the step needs the mean of

    psi = (t_y - m, v),     m = sum_k p_k t_k,     v = sum_k p_k t_k^2 - m^2.

As |t_k| <= 1, v <= 1 - m^2 and |t_y - m| <= 1 + |m|. So |psi|^2 <= (1 + a)^2 + (1 - a^2)^2 with
a = |m|, which increases in a up to 4 at a = 1, as its derivative is (1 + a) (1 + (2 a - 1)^2). The
clip norm 2 never binds, and the mean moves by at most 4 / n. A row of no class adds 0.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.mechanism import Repeat
from jaxminimax.releases import sums
from jaxminimax.tables.columns import Category, Number
from jaxminimax.tables.records import MEMORY, Store, in_blocks
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import Moments

BEND = 1.0  # of Huber's loss, in standard deviations of the label
_RARE = 0.02  # share of a value from which training starts, at least: of two values
_RAREST = 0.002  # and of several, which are rarer
LINE_CLIP, OF_CLASSES = math.sqrt(2.0), 2.0  # of the release that calibrates
_UNIT = 2.0  # of log-odds, for t
_RIDGE = 3.0  # standard deviations of the noise
_Rows = tuple[jax.Array, jax.Array, jax.Array]  # x, y and weight of a person's rows


def _two(z: Saddle, record: _Rows) -> Saddle:
    """Returns a person's mean gradient: sum_k weight_k (sigma(x_k w) - y_k) x_k."""
    x, y, weight = record
    return Saddle((weight * (jax.nn.sigmoid(x @ z.w) - y)) @ x, None)


def _several(z: Saddle, record: _Rows) -> Saddle:
    """Returns sum_k weight_k x_k (|y_k| softmax(x_k W) - y_k)^T; y_k = 0 for none of the values."""
    x, y, weight = record
    residual = jnp.sum(y, 1, keepdims=True) * jax.nn.softmax(x @ z.w) - y
    return Saddle(x.T @ (weight[:, None] * residual), None)


def _number(z: Saddle, record: _Rows) -> Saddle:
    """Returns sum_k weight_k min(max(x_k w - y_k, -h), h) x_k."""
    x, y, weight = record
    return Saddle((weight * jnp.clip(x @ z.w - y, -BEND, BEND)) @ x, None)


# Each kind of label answers: `loss` and `released`, in words; `problem`; `clip` and `longest`, the
# clip norm and the time that a plain round may stand for; `most`, the longest gradient;
# `curvature`, h of a preconditioner; `haste`, by which the time of the gradient flow is divided;
# `wide`, whether it grows with the columns; `unsure`, the least variance that a feature is divided
# by, in standard deviations of a released mean; `slowest` and `growth`, by how much preconditioned
# steps may prolong it, and do at released shares, in words `slower`; `psi`, its part of the
# moments, of `numbers` of a row with |psi|^2 at most `length`;
# `prior`, what is kept of their released mean; `target`, what is trained on; `start`, weights
# `[d + 1, ...]`; and `finished`, weights whose scores are in the label's own units.


class _Label:
    """The base of the kinds: no growth, a target that is the label itself, weights as trained."""

    def growth(self, by: Moments) -> float:
        """Returns 1."""
        return 1.0

    def target(self, y: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns y."""
        return y

    def finished(self, w: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns the weights."""
        return w


@dataclasses.dataclass(frozen=True)
class TwoValues(_Label):
    """A label that is 1 for one value and 0 for all others, `[n]`."""

    loss, released, problem = "Logistic loss", "share of positives", Problem(_two)
    clip, most, curvature = math.sqrt(0.5), math.sqrt(2.0), 0.125
    longest, haste, wide, unsure = 20.0, 1.0, True, 2.0
    numbers, length, slowest, slower = 1, 0.25, 1.0, ""

    def psi(self, y: jax.Array) -> list[jax.Array]:
        """Returns y - 1/2, `[rows, 1]`."""
        return [y[:, None] - 0.5]

    def prior(self, mean: np.ndarray) -> float:
        """Returns the share of positives."""
        return float(np.clip(mean[0] + 0.5, _RARE, 1 - _RARE))

    def start(self, width: int, by: Moments) -> np.ndarray:
        """Returns weights of 0, and the intercept of the share of positives."""
        w = np.zeros(width + 1, np.float32)
        w[-1] = np.log(by.prior / (1 - by.prior))
        return w


@dataclasses.dataclass(frozen=True)
class Several(_Label):
    """A label of one of K values, a 1 in the place of the value, `[n, K]`.

    Attributes:
      count: K, three at least.
    """

    count: int
    released, problem = "share of every class", Problem(_several)
    most, curvature = 2.0, 0.25
    longest, haste, wide, unsure = 10.0, math.sqrt(2.0), True, 0.5
    slower = ", less where the released shares of many classes are near each other"

    @property
    def loss(self) -> str:
        """Returns the loss in words."""
        return f"Logistic loss of {self.count} classes together, by softmax,"

    @property
    def numbers(self) -> int:
        """Returns K, one a value."""
        return self.count

    @property
    def clip(self) -> float:
        """Returns the length of an undecided record's gradient, sqrt(2 (1 - 1/K))."""
        return math.sqrt(2 * self.length)

    @property
    def length(self) -> float:
        """Bounds |y - 1/K|^2 by 1 - 1/K."""
        return 1 - 1 / self.count

    @property
    def slowest(self) -> float:
        """Returns K / 3, the growth at equal shares."""
        return self.count / 3

    def growth(self, by: Moments) -> float:
        """Returns 1 / (3 sum q_k^2) of the shares q, at least 1."""
        return max(1.0, 1 / (3 * float(np.sum(np.square(by.prior)))))

    def psi(self, y: jax.Array) -> list[jax.Array]:
        """Returns y - 1/K, `[rows, K]`."""
        return [y - 1 / self.count]

    def prior(self, mean: np.ndarray) -> np.ndarray:
        """Returns the share of every value, at least a five-hundredth."""
        shares = np.clip(mean + 1 / self.count, _RAREST, 1.0)
        return shares / shares.sum()

    def start(self, width: int, by: Moments) -> np.ndarray:
        """Returns weights of 0, and the intercepts of the shares."""
        w = np.zeros((width + 1, self.count), np.float32)
        w[-1] = np.log(by.prior)
        return w

    def finished(self, w: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns the weights with a mean of 0 over the values, which changes no probability."""
        return w - w.mean(1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Amount(_Label):
    """A label that is a number with a public range, which is mapped to [-1, 1], `[n]`.

    Attributes:
      low: lower end of the range.
      high: upper end.
    """

    low: float
    high: float
    loss = f"Huber loss, linear beyond {BEND:g} standard deviation of the label,"
    released, problem = "mean of the label", Problem(_number)
    clip = most = math.sqrt(2.0) * BEND
    curvature = 0.5
    longest, haste, wide, unsure = 5.0, 2.0, False, 0.5
    numbers, length, slowest, slower = 2, 1.0, 1.0, ""

    def psi(self, y: jax.Array) -> list[jax.Array]:
        """Returns y and y^2 - 1, `[rows, 1]` each."""
        return [y[:, None], y[:, None] ** 2 - 1]

    def prior(self, mean: np.ndarray) -> np.ndarray:
        """Returns the mean of y and that of its square."""
        return np.clip(mean + np.array([0.0, 1.0]), [-1.0, 0.0], 1.0)

    def _spread(self, by: Moments, floor: float) -> tuple[float, float]:
        """Returns the label's mean and standard deviation, both noisy."""
        mean, second = np.asarray(by.prior)
        return float(mean), math.sqrt(max(second - mean**2, 0.0) + floor)

    def target(self, y: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns (y - m) / s."""
        mean, deviation = self._spread(by, floor)
        return ((y - mean) / deviation).astype(np.float32)

    def start(self, width: int, by: Moments) -> np.ndarray:
        """Returns weights of 0, where every row has the mean label."""
        return np.zeros(width + 1, np.float32)

    def finished(self, w: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns weights with which scores have the label's units."""
        mean, deviation = self._spread(by, floor)
        half = (self.high - self.low) / 2
        w = half * deviation * w
        w[-1] += self.low + half * (1 + mean)
        return w


Label = TwoValues | Several | Amount


def of(schema: Schema) -> Label:
    """Returns the kind of label that a schema declares."""
    if isinstance(schema.target, Category):
        return Several(len(schema.target.values))
    if isinstance(schema.target, Number):
        return Amount(schema.target.low, schema.target.high)
    return TwoValues()


# --- calibration ---


_Weighted = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # p, t, y and weight


def _psi(z: Saddle, record: _Weighted) -> Saddle:
    p, t, y, weight = record
    h = p * (1 - p)
    return Saddle(weight @ jnp.stack([y - p, (y - p) * t, h, h * t, h * t * t], 1), None)


def _psi_of_several(z: Saddle, record: _Weighted) -> Saddle:
    p, t, y, weight = record
    mean = jnp.sum(p * t, 1)
    variance = jnp.sum(p * t * t, 1) - mean**2
    labelled = jnp.sum(y, 1)
    return Saddle(weight @ jnp.stack([jnp.sum(y * t, 1) - labelled * mean, labelled * variance],
                                     1), None)


_PSI, _SEVERAL = Problem(_psi), Problem(_psi_of_several)


def _of_two(scores: np.ndarray, middle: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns p and t."""
    return scipy.special.expit(scores), np.clip((scores - middle) / _UNIT, -1.0, 1.0)


def _of_several(scores: np.ndarray, middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns p and t of K classes."""
    t = (scores - middle) / _UNIT
    t = t - t.mean(-1, keepdims=True)
    return scipy.special.softmax(scores, -1), t / np.maximum(np.abs(t).max(-1, keepdims=True), 1.0)


def release_line(key: jax.Array, described: Repeat, scores: np.ndarray, y: np.ndarray,
                 weight: np.ndarray, prior: float | np.ndarray, store: Store = MEMORY,
                 place: Callable[[PyTree], PyTree] = jax.device_put) -> tuple[Any, float]:
    """Releases a and b, by which scores s become a + b s.

    Args:
      key: a key of its own, not the run's.
      described: `statistics.one_release` of vectors of length `LINE_CLIP`, of classes `OF_CLASSES`.
      scores: of a released scorer, `[n, rows]`, of classes `[n, rows, K]`.
      y: labels in {0, 1}, `[n, rows]`, of classes `[n, rows, K]`.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
      prior: the released share of positives, or of all classes, `[K]`; a has its shape.
      store: of arrays that are made of these.
      place: puts all rows where they are read.
    """
    query, several = described.query, bool(np.ndim(prior))
    deviation = query.clip.w * query.noise_multiplier.w / query.population
    middle: Any = np.log(prior) if several else float(scipy.special.logit(prior))
    of: Any = _of_several if several else _of_two
    p, t = (in_blocks(lambda s, k=k: of(s, middle)[k], store.zeros(*scores.shape), scores)
            for k in (0, 1))
    data = place((p, t, np.asarray(y, np.float32), np.asarray(weight, np.float32)))
    numbers = sums.compiled_release(key, described, _SEVERAL if several else _PSI,
                                    Saddle(np.zeros(2 if several else 5, np.float32), ()), data).w
    numbers = np.asarray(numbers, np.float64)
    if several:
        shift, tilt = 0.0, numbers[0] / (max(numbers[1], 0.0) + _RIDGE * deviation)
    else:
        *gradient, flat, mixed, steep = numbers.tolist()
        values, vectors = np.linalg.eigh([[flat, mixed], [mixed, steep]])
        values = np.maximum(values, 0.0) + _RIDGE * deviation
        shift, tilt = vectors @ ((vectors.T @ gradient) / values)
    tilt /= _UNIT
    slope = float(1 + tilt if tilt > 0 else 1 / (1 - tilt))
    return np.asarray(shift + (1 - slope) * middle).tolist(), slope
