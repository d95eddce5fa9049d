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
residuals r = x w - u up to the knee h and linear beyond. `rule` lets h grow from 1 with the data,
as a mean is what R^2 is about; it is divided into u and multiplied into the weights at the end, so
that residuals are cut at 1 in training. A record's gradient is min(max(r, -1), 1) x, so it is at
most sqrt(2) long, which is the clip norm: it never binds, whatever h is, and records far off count
no more than others. u is a function of the record and of released numbers, as before. The curvature
is at most |x|^2 = 2. A label has the variance 1, and noise g in a weight adds up to g^2 to that of
the scores, however many columns there are. So g is half of the other labels' 0.7, and the time does
not grow with the columns. (It does not shrink with h either: in units of h the flow is the same.)

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
and three standard deviations of the noise are added to them, so that noise alone moves little. The
shift a is divided by 1 + (4 s / max(h, s))^2, h the released mean and s its noise: it is noise on
small tables, where the share of positives is in the intercept already. A
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
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy

from jaxminimax.apps.tables.columns import Category, Number
from jaxminimax.apps.tables.records import GROUP_LOGISTIC, MEMORY, Store, in_blocks
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle, saddle_operator
from jaxminimax.mechanism import Repeat
from jaxminimax.releases import sums

BEND = 1.0  # of Huber's loss, in units of h deviations of the label
CALIBRATION_CLIP, CALIBRATION_CLIP_OF_CLASSES = math.sqrt(2.0), 2.0
_UNIT = 2.0  # of log-odds, for t
_Rows = tuple[jax.Array, jax.Array, jax.Array]  # x, y and weight of a person's rows


def _several(z: Saddle, record: _Rows) -> Saddle:
    """Returns sum_k weight_k x_k (|y_k| softmax(x_k W) - y_k)^T; y_k = 0 for none of the values."""
    x, y, weight = record
    residual = jnp.sum(y, 1, keepdims=True) * jax.nn.softmax(x @ z.w) - y
    return Saddle(x.T @ (weight[:, None] * residual), None)


def _number(z: Saddle, record: _Rows) -> Saddle:
    """Returns sum_k weight_k min(max(x_k w - y_k, -1), 1) x_k."""
    x, y, weight = record
    return Saddle((weight * jnp.clip(x @ z.w - y, -BEND, BEND)) @ x, None)


def _huber(w: jax.Array, _: PyTree, record: _Rows) -> jax.Array:
    """Returns a person's mean loss, sum_k weight_k H(x_k w - y_k)."""
    x, y, weight = record
    return weight @ optax.losses.huber_loss(x @ w, y, delta=BEND)


class Label(Protocol):
    """A kind of label: all that it changes in training."""

    released: str  # in words, of its part of the moments
    problem: Problem  # of one person's rows
    clip: float  # norm that a gradient is cut to
    longest_gradient: float  # norm that no gradient exceeds
    curvature: float  # h of a preconditioner
    longest_round_time: float  # of the gradient flow, that a plain round may stand for
    time_divisor: float  # of the flow's time
    time_grows_with_width: bool  # whether the time grows with the columns
    variance_floor_deviations: float  # least variance of a feature, in deviations of a mean
    numbers: int  # of psi, its part of the moments
    length: float  # that |psi|^2 has at most
    squared_distance: float  # that |psi - psi'|^2 has at most

    @property
    def loss(self) -> str:
        """The loss, in words."""

    @property
    def largest_growth(self) -> float:
        """Bounds the growth of the time of preconditioned steps, at any released shares."""

    @property
    def growth_in_words(self) -> str:
        """A half sentence on the growth."""

    @property
    def group_problem(self) -> GroupProblem | None:
        """The problem of one person's rows in a public group; None for none."""

    @property
    def calibration_clip(self) -> float | None:
        """The clip norm of the release that calibrates scores; None for none."""

    def __hash__(self) -> int:
        """A label is a key of the operators that are compiled for it."""

    def growth(self, moments: Moments) -> float:
        """Returns by what preconditioned steps prolong the time."""

    def psi(self, y: jax.Array) -> list[jax.Array]:
        """Returns the centred numbers of a person's labels, `[rows, ...]` each."""

    def prior(self, mean: np.ndarray) -> float | np.ndarray:
        """Returns what is kept of the released mean of psi."""

    def target(self, y: np.ndarray, moments: Moments, floor: float) -> np.ndarray:
        """Returns the numbers that are trained on."""

    def start(self, width: int, moments: Moments) -> np.ndarray:
        """Returns the first weights, `[d + 1, ...]`."""

    def finished(self, w: np.ndarray, moments: Moments, floor: float) -> np.ndarray:
        """Returns weights whose scores are in the label's own units."""


@dataclasses.dataclass(frozen=True)
class TwoValues:
    """A label that is 1 for one value and 0 for all others, `[n]`.

    Attributes:
      largest_growth: of the time of preconditioned steps, for rare values; public. The growth
        itself is a function of the released share, so it costs nothing.
    """

    largest_growth: float = 1.0
    loss, released = "Logistic loss", "share of positives"
    problem, group_problem = Problem(GROUP_LOGISTIC.operator), GROUP_LOGISTIC
    clip, longest_gradient, curvature = math.sqrt(0.5), math.sqrt(2.0), 0.125
    longest_round_time, time_divisor, time_grows_with_width = 20.0, 1.0, True
    variance_floor_deviations, numbers, length, squared_distance = 2.0, 1, 0.25, 1.0
    calibration_clip = CALIBRATION_CLIP

    @property
    def growth_in_words(self) -> str:
        """Says what shortens the ridge."""
        return "" if self.largest_growth == 1 else (
            f", divided by up to {self.largest_growth:g} where the released share is far from 1/2")

    def growth(self, moments: Moments) -> float:
        """Returns (4 q (1 - q))^(-1/2) of the released share q, at most `largest_growth`."""
        share = float(moments.prior)
        return min(self.largest_growth, (4 * share * (1 - share)) ** -0.5)

    def psi(self, y: jax.Array) -> list[jax.Array]:
        """Returns y - 1/2, `[rows, 1]`."""
        return [y[:, None] - 0.5]

    def prior(self, mean: np.ndarray) -> float:
        """Returns the share of positives."""
        return float(np.clip(mean[0] + 0.5, 0.02, 0.98))

    def target(self, y: np.ndarray, moments: Moments, floor: float) -> np.ndarray:
        """Returns the label as it is."""
        return y

    def start(self, width: int, moments: Moments) -> np.ndarray:
        """Returns weights of 0, and the intercept of the share of positives."""
        w = np.zeros(width + 1, np.float32)
        w[-1] = np.log(moments.prior / (1 - moments.prior))
        return w

    def finished(self, w: np.ndarray, moments: Moments, floor: float) -> np.ndarray:
        """Returns the weights as trained."""
        return w


@dataclasses.dataclass(unsafe_hash=True)
class Several:
    """A label of one of K values, a 1 in the place of the value, `[n, K]`.

    Its clip norm is the length of an undecided record's gradient, sqrt(2 (1 - 1/K)).
    |y - 1/K|^2 <= 1 - 1/K bounds psi, and K / 3 is the growth at equal shares.

    Attributes:
      count: K, three at least.
    """

    count: int
    released, problem, group_problem = "share of every class", Problem(_several), None
    longest_gradient, curvature = 2.0, 0.25
    longest_round_time, time_divisor, time_grows_with_width = 10.0, math.sqrt(2.0), True
    variance_floor_deviations, squared_distance = 0.5, 2.0
    calibration_clip = CALIBRATION_CLIP_OF_CLASSES
    growth_in_words = ", less where the released shares of many classes are near each other"

    def __post_init__(self) -> None:
        self.loss = f"Logistic loss of {self.count} classes together, by softmax,"
        self.numbers, self.length = self.count, 1 - 1 / self.count
        self.clip, self.largest_growth = math.sqrt(2 * self.length), self.count / 3

    def growth(self, moments: Moments) -> float:
        """Returns 1 / (3 sum q_k^2) of the shares q, at least 1."""
        return max(1.0, 1 / (3 * float(np.sum(np.square(moments.prior)))))

    def psi(self, y: jax.Array) -> list[jax.Array]:
        """Returns y - 1/K, `[rows, K]`."""
        return [y - 1 / self.count]

    def prior(self, mean: np.ndarray) -> np.ndarray:
        """Returns the share of every value, at least a five-hundredth."""
        shares = np.clip(mean + 1 / self.count, 0.002, 1.0)
        return shares / shares.sum()

    def target(self, y: np.ndarray, moments: Moments, floor: float) -> np.ndarray:
        """Returns the label as it is."""
        return y

    def start(self, width: int, moments: Moments) -> np.ndarray:
        """Returns weights of 0, and the intercepts of the shares."""
        w = np.zeros((width + 1, self.count), np.float32)
        w[-1] = np.log(moments.prior)
        return w

    def finished(self, w: np.ndarray, moments: Moments, floor: float) -> np.ndarray:
        """Returns the weights with a mean of 0 over the values, which changes no probability."""
        return w - w.mean(1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Amount:
    """A label that is a number with a public range, which is mapped to [-1, 1], `[n]`.

    Attributes:
      low: lower end of the range.
      high: upper end.
      knee: h of Huber's loss, in released standard deviations of the label; public.
    """

    low: float
    high: float
    knee: float = 1.0
    released, problem = "mean of the label", Problem(_number)
    group_problem = GROUP_LOGISTIC._replace(loss=lambda w, record: _huber(w, (), record),
                                            operator=saddle_operator(_huber))
    clip = longest_gradient = math.sqrt(2.0) * BEND
    curvature = 0.5
    longest_round_time, time_divisor, time_grows_with_width = 5.0, 2.0, False
    variance_floor_deviations, numbers, length, squared_distance = 0.5, 2, 1.0, 4.0
    calibration_clip = None
    largest_growth, growth_in_words = 1.0, ""

    @property
    def loss(self) -> str:
        """Huber's, and where it bends."""
        return f"Huber loss, linear beyond {self.knee:.3g} standard deviation(s) of the label,"

    def growth(self, moments: Moments) -> float:
        """Returns 1: the time does not grow with the moments."""
        return 1.0

    def psi(self, y: jax.Array) -> list[jax.Array]:
        """Returns y and y^2 - 1, `[rows, 1]` each."""
        return [y[:, None], y[:, None] ** 2 - 1]

    def prior(self, mean: np.ndarray) -> np.ndarray:
        """Returns the mean of y and that of its square."""
        return np.clip(mean + np.array([0.0, 1.0]), [-1.0, 0.0], 1.0)

    def _spread(self, moments: Moments, floor: float) -> tuple[float, float]:
        """Returns the label's mean, and h standard deviations, all noisy."""
        mean, second = np.asarray(moments.prior)
        return float(mean), self.knee * math.sqrt(max(second - mean**2, 0.0) + floor)

    def target(self, y: np.ndarray, moments: Moments, floor: float) -> np.ndarray:
        """Returns (y - m) / (s h)."""
        mean, deviation = self._spread(moments, floor)
        return ((y - mean) / deviation).astype(np.float32)

    def start(self, width: int, moments: Moments) -> np.ndarray:
        """Returns weights of 0, where every row has the mean label."""
        return np.zeros(width + 1, np.float32)

    def finished(self, w: np.ndarray, moments: Moments, floor: float) -> np.ndarray:
        """Returns weights with which scores have the label's units."""
        mean, deviation = self._spread(moments, floor)
        half = (self.high - self.low) / 2
        w = half * deviation * w
        w[-1] += self.low + half * (1 + mean)
        return w


def label_of(schema: Schema) -> Label:
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


def _probabilities_of_two(scores: np.ndarray, middle: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities p, and the centred scores t, cut to [-1, 1]."""
    return scipy.special.expit(scores), np.clip((scores - middle) / _UNIT, -1.0, 1.0)


def _probabilities(scores: np.ndarray, middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns p and t of K classes."""
    t = (scores - middle) / _UNIT
    t = t - t.mean(-1, keepdims=True)
    return scipy.special.softmax(scores, -1), t / np.maximum(np.abs(t).max(-1, keepdims=True), 1.0)


def release_calibration(key: jax.Array, described: Repeat, scores: np.ndarray, y: np.ndarray,
                        weight: np.ndarray, prior: float | np.ndarray,
                        store: Store = MEMORY) -> tuple[Any, float]:
    """Releases a and b, by which scores s become a + b s.

    Args:
      key: a key of its own, not the run's.
      described: `statistics.one_release` of vectors of length `CALIBRATION_CLIP`, of classes
        `CALIBRATION_CLIP_OF_CLASSES`.
      scores: of a released scorer, `[n, rows]`, of classes `[n, rows, K]`.
      y: labels in {0, 1}, `[n, rows]`, of classes `[n, rows, K]`.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
      prior: the released share of positives, or of all classes, `[K]`; a has its shape.
      store: of arrays that are made of these.
    """
    query, several = described.query, bool(np.ndim(prior))
    deviation = query.clip.w * query.noise_multiplier.w / query.population
    middle: Any = np.log(prior) if several else float(scipy.special.logit(prior))
    function: Any = _probabilities if several else _probabilities_of_two
    p, t = (in_blocks(lambda s, k=k: function(s, middle)[k], store.zeros(*scores.shape), scores)
            for k in (0, 1))
    data = jax.device_put((p, t, np.asarray(y, np.float32), np.asarray(weight, np.float32)))
    numbers = sums.compiled_release(key, described, Problem(_psi_of_several if several else _psi),
                                    Saddle(np.zeros(2 if several else 5, np.float32), ()), data).w
    numbers = np.asarray(numbers, np.float64)
    if several:
        intercept, step = 0.0, numbers[0] / (max(numbers[1], 0.0) + 3 * deviation)
    else:
        *gradient, flat, mixed, steep = numbers.tolist()
        values, vectors = np.linalg.eigh([[flat, mixed], [mixed, steep]])
        values = np.maximum(values, 0.0) + 3 * deviation
        intercept, step = vectors @ ((vectors.T @ gradient) / values)
        # of few rows the shift is noise: h of them is a mean, and `deviation` that of its noise
        intercept /= 1 + (4 * deviation / max(flat, deviation)) ** 2
    step /= _UNIT
    slope = float(1 + step if step > 0 else 1 / (1 - step))
    return np.asarray(intercept + (1 - slope) * middle).tolist(), slope
