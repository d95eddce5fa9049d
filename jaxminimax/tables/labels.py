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
length 1/4; e_y - 1/K of several, of squared length 1 - 1/K, or 1/K for a row with none of them; y
and y^2 - 1 of a number, at most 1 together, as `statistics` shows.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import Problem, Saddle
from jaxminimax.tables.columns import Category, Number
from jaxminimax.tables.scaling import Moments
from jaxminimax.tables.schema import Schema

BEND = 1.0  # of Huber's loss, in standard deviations of the label
_RARE = 0.02  # share of a value from which training starts, at least: of two values
_RAREST = 0.002  # and of several, which are rarer
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


@dataclasses.dataclass(frozen=True)
class TwoValues:
    """A label that is 1 for one value and 0 for all others, `[n]`."""

    loss = "Logistic loss"
    released = "share of positives"
    problem = Problem(_two)
    clip = math.sqrt(0.5)
    most = math.sqrt(2.0)
    curvature = 0.125
    longest = 20.0
    haste = 1.0
    wide = True
    unsure = 2.0
    slowest, slower = 1.0, ""
    numbers = 1
    length = 0.25

    def psi(self, y: jax.Array) -> list[jax.Array]:
        """Returns y - 1/2, `[rows, 1]`."""
        return [y[:, None] - 0.5]

    def prior(self, mean: np.ndarray) -> float:
        """Returns the share of positives."""
        return float(np.clip(mean[0] + 0.5, _RARE, 1 - _RARE))

    def target(self, y: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns y."""
        return y

    def growth(self, by: Moments) -> float:
        """Returns 1."""
        return 1.0

    def start(self, width: int, by: Moments) -> np.ndarray:
        """Returns weights of 0, and the intercept of the share of positives."""
        w = np.zeros(width + 1, np.float32)
        w[-1] = np.log(by.prior / (1 - by.prior))
        return w

    def finished(self, w: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns the weights."""
        return w


@dataclasses.dataclass(frozen=True)
class Several:
    """A label of one of K values, a 1 in the place of the value, `[n, K]`.

    Attributes:
      count: K, three at least.
    """

    count: int
    problem = Problem(_several)
    most = 2.0
    curvature = 0.25
    longest = 10.0
    haste = math.sqrt(2.0)
    wide = True
    unsure = 0.5
    slower = ", less where the released shares of many classes are near each other"

    @property
    def loss(self) -> str:
        """Returns the loss in words."""
        return f"Logistic loss of {self.count} classes together, by softmax,"

    @property
    def released(self) -> str:
        """Returns what is released of the label."""
        return "share of every class"

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

    def target(self, y: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns y."""
        return y

    def start(self, width: int, by: Moments) -> np.ndarray:
        """Returns weights of 0, and the intercepts of the shares."""
        w = np.zeros((width + 1, self.count), np.float32)
        w[-1] = np.log(by.prior)
        return w

    def finished(self, w: np.ndarray, by: Moments, floor: float) -> np.ndarray:
        """Returns the weights with a mean of 0 over the values, which changes no probability."""
        return w - w.mean(1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Amount:
    """A label that is a number with a public range, which is mapped to [-1, 1], `[n]`.

    Attributes:
      low: lower end of the range.
      high: upper end.
    """

    low: float
    high: float
    loss = f"Huber loss, linear beyond {BEND:g} standard deviation of the label,"
    released = "mean of the label"
    problem = Problem(_number)
    clip = most = math.sqrt(2.0) * BEND
    curvature = 0.5
    longest = 5.0
    haste = 2.0
    wide = False
    unsure = 0.5
    slowest, slower = 1.0, ""
    numbers = 2
    length = 1.0

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

    def growth(self, by: Moments) -> float:
        """Returns 1."""
        return 1.0

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
