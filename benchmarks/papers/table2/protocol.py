"""DP-SGDA and NSEG as their experiments were printed, and the privacy that this really has.

Batches of 64 drawn with replacement; the learning rates, epochs and radii of Table 4; bounds G on
the gradients that are the largest norms of a run without noise; and the closed form of Remark 1,

    sigma = 8 G sqrt(T ln(1/delta)) / (n epsilon)        on the mean of a batch, for each player.

Source: Yang et al., arXiv:2201.09046, sections 4.1 and E.4 and Remark 1. What is not printed: the
labels (classes 0-4 against 5-9 fit the published figures of both image sets), the slope of the
leaky ReLU, the initial weights (normal here, of variance 1 / (3 fan in)), and whether the last or
the averaged point is scored (both are, here). Its code computed sigma with a library; which event
it gave to that library is not printed either.

The remark asks for epsilon <= 1, delta <= 1/n^2 and batches of n sqrt(epsilon / (4 T)); beyond, the
formula is taken as it stands. The gradient bound is read off the data without paying, and columns
of ijcnn1 are scaled by their extremes: nothing trained here is private. The epsilon beside it is
what the noise would give if those numbers were public.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import special, stats

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import settings
from benchmarks.data_sets import data
from jaxminimax import Saddle

BATCH = 64


@dataclasses.dataclass(frozen=True)
class Printed:
    """A row of Table 4: learning rates of w and v, epochs and radius, without noise and with.

    The printed rates are for an objective that is 1/n of the one here.
    """

    rate: tuple[float, float]
    epochs: int
    private_rate: tuple[float, float]
    private_epochs: int
    radius: float


TABLE4 = {
    ("nseg", "ijcnn1"): Printed((300, 300), 1000, (350, 350), 15, 100),
    ("nseg", "mnist"): Printed((11, 11), 100, (5, 5), 15, 2),
    ("nseg", "fashion_mnist"): Printed((11, 11), 100, (5, 5), 15, 3),
    ("linear", "ijcnn1"): Printed((300, 300), 100, (350, 350), 15, 10),
    ("linear", "mnist"): Printed((11, 11), 100, (5, 5), 15, 2),
    ("linear", "fashion_mnist"): Printed((11, 11), 100, (5, 5), 15, 3),
    ("mlp", "ijcnn1"): Printed((3000, 3001), 10, (500, 501), 10, 100),
    ("mlp", "mnist"): Printed((900, 1000), 10, (100, 210), 10, 2),
    ("mlp", "fashion_mnist"): Printed((900, 1000), 10, (100, 210), 10, 2),
}
RECORDS = {"ijcnn1": 39_992, "mnist": 60_000, "fashion_mnist": 60_000}
FEATURES = {"ijcnn1": "published scaling", "mnist": "standard", "fashion_mnist": "standard"}


def noise_multiplier(n: int, rounds: int, epsilon: float, delta: float) -> float:
    """Remark 1's noise on the sum of a batch over G: 64 sigma / G."""
    return 8 * BATCH * math.sqrt(rounds * math.log(1 / delta)) / (n * epsilon)


def described(method: str, n: int, rounds: int, epsilon: float, delta: float,
              clip: Saddle | None = None) -> jmm.mechanism.Repeat:
    """What the printed protocol does, in the words of the accountant; it charges any clip alike.

    NSEG has one sigma for both players, from both gradients together, and two releases in a round.
    """
    z = noise_multiplier(n, rounds, epsilon, delta)
    clip = clip or Saddle(1.0, 1.0)
    both = math.hypot(*clip)
    noise = Saddle(*(z * both / c for c in clip)) if method == "nseg" else Saddle(z, z)
    query = jmm.Query(clip=clip, noise_multiplier=noise, population=n,
                      sampling=jmm.FixedSize(batch=BATCH, replacement=True))
    return jmm.mechanism.Repeat(query=query, times=rounds * (2 if method == "nseg" else 1))


@functools.lru_cache(maxsize=512)
def attained(mechanism: jmm.mechanism.Repeat, delta: float, cells: int = 2**19) -> float:
    """The epsilon that one explicit pair of data sets has under the mechanism, at `delta`.

    All records but one have opposite gradients at full clip norm; the one turns around. With a
    batch drawn with replacement that is a mixture of N(2j, z^2), j ~ Binomial(b, 1/n), against
    N(0, z^2), composed by a Fourier transform of the privacy loss on a grid that keeps its mean.
    Neither an upper bound nor a lower one in the last digits: a number to hold a claim against.
    """
    query = mechanism.query
    assert isinstance(query, jmm.Query)
    z = jmm.accounting.effective_noise_multiplier(query)
    hits = np.arange(10)
    weight = stats.binom.pmf(hits, BATCH, 1 / query.population)
    edges = np.linspace(-10, 10 + 8 / z, 40_001)  # in units of the noise
    middle = (edges[1:] + edges[:-1]) / 2
    means = 2 * hits / z
    near = np.diff(special.ndtr(edges))
    far = np.maximum(np.diff(special.ndtr(edges - means[:, None])), 0).T @ weight
    loss = special.logsumexp(middle[:, None] * means - means**2 / 2, axis=1, b=weight)
    answers = []
    for mass, sign in ((far, 1.0), (near, -1.0)):
        spread = math.sqrt(mechanism.times * (mass @ loss**2))
        wide = abs(mechanism.times * (mass @ loss)) + 12 * spread + 2 * np.abs(loss).max()
        grid = 2 * wide / cells
        place = sign * loss / grid
        low = np.floor(place)
        pmf = np.zeros(cells)
        for at, share in ((low, 1 - (place - low)), (low + 1, place - low)):
            np.add.at(pmf, at.astype(int) % cells, mass * share)
        total = np.fft.irfft(np.fft.rfft(pmf) ** mechanism.times, cells)
        values = (np.arange(cells) + cells // 2) % cells - cells // 2  # grid places, wrapped
        order = np.argsort(values)
        answers.append(_epsilon(values[order] * grid, np.maximum(total[order], 0), delta))
    return max(answers)


def _epsilon(loss: np.ndarray, mass: np.ndarray, delta: float) -> float:
    """Where sum_i mass_i (1 - exp(epsilon - loss_i))_+ falls to delta."""
    first = int(np.searchsorted(-np.cumsum(mass[::-1])[::-1], -delta / 1e3))  # no more beyond
    loss, mass = loss[:first], mass[:first]
    low, high = 0.0, max(float(loss[-1]), 0.0)
    for _ in range(40):
        middle = (low + high) / 2
        above = slice(int(np.searchsorted(loss, middle)), None)
        value = mass[above] @ -np.expm1(middle - loss[above])
        low, high = (middle, high) if value > 0.999 * delta else (low, middle)
    return high


def gradient_norms(problem: jmm.Problem, z: Saddle, rows: Any) -> Saddle:
    """Per player the largest norm of one record's gradient among `rows` at z."""
    def norm(tree: Any) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)))

    norms = jax.lax.map(lambda row: Saddle(*map(norm, problem.operator(z, row))), rows,
                        batch_size=BATCH)
    return Saddle(*(jnp.max(x) for x in norms))


def hyper(method: str, name: str, n: int, clip: Saddle, epsilon: float, delta: float,
          printed: Printed) -> Any:
    """The algorithm's hyper-parameters in the printed protocol; epsilon infinite: no noise."""
    private = epsilon < math.inf
    rate = printed.private_rate if private else printed.rate
    rounds = (printed.private_epochs if private else printed.epochs) * n // BATCH
    if private:
        query = described(method, n, rounds, epsilon, delta, clip).query
    else:
        query = jmm.Query(clip=Saddle(math.inf, math.inf), noise_multiplier=Saddle(0.0, 0.0),
                          population=n, sampling=jmm.FixedSize(batch=BATCH, replacement=True))
    common = dict(query=query, iterations=rounds, step=Saddle(*(x / n for x in rate)))
    if method == "nseg":
        return jmm.extragradient.Hyper(**common)
    return jmm.sgda.Hyper(**common, optimiser=Saddle(optax.sgd, optax.sgd))


def initial(method: str, dim: int, seed: int, hidden: int = 256) -> Saddle:
    """Zero, or weights of the usual size."""
    like = settings.Settings(clip=1.0, step=1.0, iterations=1, hidden=hidden,
                             norm=math.sqrt(3 * dim), scale=3**-0.5)
    return auc_runs.start("mlp" if method == "mlp" else "linear", like, dim, seed)


def _problem(method: str, dataset: data.Dataset, printed: Printed) -> jmm.Problem:
    return auc_runs.problem("mlp" if method == "mlp" else "linear",
                            float(dataset.y_train.mean()), printed.radius, "ascent")


def trained(method: str, dataset: data.Dataset, seed: int, printed: Printed, clip: Saddle,
            *budget: float) -> Any:
    """The last state of one run at (epsilon, delta); without a budget, of one without noise."""
    epsilon, delta = budget or (math.inf, 0.0)
    rows = (jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train))
    own = hyper(method, dataset.name, len(rows[1]), clip, epsilon, delta, printed)
    return _RUN(auc_runs.key(seed, f"printed, {method}", *budget),
                initial(method, rows[0].shape[1], seed), rows, own,
                jmm.extragradient if method == "nseg" else jmm.sgda,
                _problem(method, dataset, printed))[0]


def scores(method: str, state: Any, tests: auc_runs.Tests) -> tuple[list[float], list[float]]:
    """AUCs of the last and of the average point, by test.

    Raises:
        Diverged: if scores are not finite.
    """
    result: tuple[list[float], list[float]] = ([], [])
    for z, aucs in zip((state.z, state.average), result, strict=True):
        for x, y in tests:
            seen = _SCORES(z.w["theta"], jnp.asarray(x), "mlp" if method == "mlp" else "linear")
            if not np.isfinite(seen).all():
                raise auc_runs.Diverged(f"{method}: the run diverged")
            aucs.append(float(jmm.metrics.auc(seen, y)))
    return result


def clip_norms(method: str, dataset: data.Dataset, seed: int, printed: Printed,
               state: Any) -> Saddle:
    """The largest norms of gradients of a run without noise that ended in `state`.

    They are those at the start, at the end and at the average point: the run itself would show the
    same to some per cent.
    """
    rows = (jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train))
    some = jax.tree.map(lambda x: x[:4096], rows) if method == "mlp" else rows
    seen = [_NORMS(_problem(method, dataset, printed), z, some) for z in (
        initial(method, rows[0].shape[1], seed), state.average, state.z)]
    return Saddle(*(float(max(x)) for x in zip(*seen, strict=True)))


_RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))
_NORMS = jax.jit(gradient_norms, static_argnames="problem")
_SCORES = jax.jit(lambda theta, x, scorer: jax.vmap(auc_runs.SCORERS[scorer], (None, 0))(theta, x),
                  static_argnames="scorer")
