"""What finds planted bugs: each detector measures one number that the sound code keeps small."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import jaxminimax as jmm
from benchmarks.examples import demo_games
from benchmarks.privacy.attacks import adaptive as adaptive_attack
from benchmarks.privacy.attacks import group as group_attack
from benchmarks.privacy.attacks import stream as stream_attack
from jaxminimax import (
    Saddle,
    gda,
    group_sgd,
    mechanism,
    proximal,
    recursive_sgda,
    sgda,
)
from jaxminimax import audit as auditor
from jaxminimax.audit import released
from jaxminimax.audit.pairs import PLAIN, PROBLEM, all_releases, first_release, worst_pair
from jaxminimax.audit.released import likelihood_ratio
from jaxminimax.gradients import clipping
from jaxminimax.noise import floored_normal
from jaxminimax.releases import sums
from jaxminimax.releases.groups import release_group_gradient, release_weighted_gradient

FULL = mechanism.Full()
POISSON = mechanism.Poisson(rate=0.25)
DELTA = 1e-2
RUNS = 4000
ATTACKS = 40_000  # runs of an attack that bounds epsilon
KEY = jax.random.key(11)


class Finding(NamedTuple):
    """What a detector measured; it fires above the limit.

    Attributes:
      value: measured.
      limit: the most it may be.
      refused: whether the library refused to trace the round, so that there is nothing to measure.
    """

    value: float
    limit: float
    refused: bool = False

    @property
    def fires(self) -> bool:
        """Whether a bug was found.

        Raises:
          ValueError: for a value or a limit that is NaN: the detector is broken, and has found
            nothing.
        """
        if math.isnan(self.value) or math.isnan(self.limit):
            raise ValueError(f"A detector measured {self.value} with limit {self.limit}: it is "
                             "broken, and neither silent nor firing.")
        return self.value > self.limit


def query(where: Any, population: int = 20, **values: Any) -> mechanism.Query:
    return mechanism.Query(**{"clip": Saddle(0.5, 2.0), "sampling": where, "population": population,
                              "noise_multiplier": Saddle(1.5, 2.0), **values})


def hyper_of(algorithm: Any, rounds: int, query: mechanism.Query) -> Any:
    if algorithm is proximal:
        point = mechanism.Resolvent(bound=0.5, prox=2.0, lipschitz=0.0, diameter=10.0,
                                    sampling=query.sampling, population=query.population,
                                    noise_multiplier=1.5, assumes="lipschitz")
        return proximal.Hyper(query=proximal.certified(point), iterations=rounds)
    if algorithm is recursive_sgda:
        return recursive_sgda.Hyper(query=query, base=0.1, diameter=10.0, rounds=2,
                                    inner=rounds + 1)
    own = {"modulus": 1.0} if algorithm is gda else {"step": Saddle(0.5, 0.5)}
    return algorithm.Hyper(query=query, iterations=rounds, **own)


# --- signals ---


def over_charged(found: auditor.Signal) -> Finding:
    """The largest of a signal's numbers over what is charged for it, all from below."""
    shared = 1 + found.shared if found.shared > 0 else 0.0
    return Finding(max(found.low / found.charged, found.read / found.read_charged, shared), 1.0)


def signal(rounds: int, where: Any = FULL, algorithm: Any = sgda, joint: bool = False,
           bands: int = 1) -> Finding:
    """Signal of the worst pair over the charged one."""
    # joint releases show both players where their noise is equal
    equal: dict[str, Any] = {"noise_multiplier": Saddle(1.5, 1.5)} if joint else {}
    hyper = hyper_of(algorithm, rounds, query(where, joint=joint, bands=bands, **equal))
    data = worst_pair(hyper.query, "replace_one")
    more = (algorithm.mechanism(hyper).parts - 1) * hyper.query.population
    data = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, more), (0, 0))), data)
    start = Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))
    return over_charged(auditor.signal(KEY, algorithm, hyper, start, data, PLAIN,
                                       observe=all_releases, runs=RUNS))


def leaves() -> Finding:
    """As `signal`, of one round whose players have several leaves, scalars among them."""
    hyper = hyper_of(sgda, 1, query(FULL))
    start = Saddle({"a": jnp.float32(0), "b": jnp.float32(0), "theta": jnp.zeros(3, jnp.float32)},
                   jnp.zeros(2, jnp.float32))
    rng = np.random.default_rng(0)

    def leaf(x: jax.Array) -> jax.Array:
        one = rng.normal(size=(1, 20, *x.shape))
        two = np.concatenate([-one[:, :1], one[:, 1:]], 1)
        return jnp.asarray(1e3 * np.concatenate([one, two]), jnp.float32)

    def operator(z: Saddle, x: Saddle) -> Saddle:
        return x

    data = jax.tree.map(leaf, start)
    return over_charged(auditor.signal(KEY, sgda, hyper, start, data, jmm.Problem(operator),
                                       runs=RUNS))


def with_noise(described: Any, z: float) -> Any:
    """A description of any kind with one noise multiplier."""
    if isinstance(described, mechanism.Parallel):
        return dataclasses.replace(described, parts=tuple(with_noise(x, z)
                                                          for x in described.parts))
    return dataclasses.replace(described, noise_multiplier=z)


def group_signal(name: str, algorithm: Any = group_sgd, where: Any = FULL,
                 noise: str = "laplace") -> Finding:
    """Signal of groups' "gradients", "losses" or "largest loss" over the charged one."""
    hyper = group_attack.hyper_of(algorithm, where, 2, noise)
    hyper = dataclasses.replace(hyper, query=with_noise(hyper.query, 1.5),
                                losses=with_noise(hyper.losses, 1.0))
    return over_charged(group_attack.signals(KEY, algorithm, hyper, runs=RUNS, only=name)[name])


def stream_signal(number: int) -> Finding:
    """Signal where a record is read once over the charged one."""
    attack = stream_attack.attacks()[number]
    hyper = dataclasses.replace(attack.hyper, query=with_noise(attack.hyper.query, 0.7))
    return over_charged(stream_attack.signal(KEY, attack, hyper, runs=RUNS))


def kept_noise() -> Finding:
    """Numbers of states, but the point, the sums and the average, that depend on the key.

    Whatever else does is made of noise, and would be published with the state.
    """
    attack = stream_attack.correlated()
    hyper = dataclasses.replace(attack.hyper, query=with_noise(attack.hyper.query, 0.7))
    data = jax.tree.map(lambda x: x[0], attack.data)
    start = Saddle(jnp.zeros(1, jnp.float32), ())

    def path(key: jax.Array) -> Any:
        states = jax.jit(lambda key: jmm.run(key, start, data, hyper, attack.algorithm,
                                             attack.problem, lambda state: state)[1])(key)
        return jax.device_get(states._replace(z=(), memory=states.memory[:1], mean=()))

    one, two = (jax.tree.leaves(path(key)) for key in jax.random.split(KEY))
    return Finding(float(sum(np.sum(a != b) for a, b in zip(one, two, strict=True))), 0.0)


def power_of_two_leaves() -> Finding:
    """As `stream_signal`, of a tree whose first record is in one node more than log2(leaves)."""
    attack = stream_attack.tree(4)
    hyper = dataclasses.replace(attack.hyper, query=with_noise(attack.hyper.query, 0.7))
    return over_charged(stream_attack.signal(KEY, attack, hyper, runs=RUNS))


def adaptive(joint: bool = False) -> Finding:
    """Signal of a release with counts for clip norms over the charged one."""
    return over_charged(adaptive_attack.signal(KEY, joint, RUNS))


def audit(rounds: int) -> Finding:
    """Lower bound on epsilon; the limit is the claimed one."""
    hyper = jmm.calibrate(sgda, hyper_of(sgda, rounds, query(FULL, noise_multiplier=None)), 4.0,
                          DELTA)
    data = worst_pair(hyper.query, "replace_one")
    one, two = released.releases(KEY, sgda, hyper, data, ATTACKS)
    scores = [{"likelihood ratio": likelihood_ratio(x, hyper.query, "replace_one")}
              for x in (one, two)]
    return Finding(auditor.lower_bound(scores[0], scores[1], DELTA)[0],
                   jmm.epsilon(sgda.mechanism(hyper), DELTA))


# --- other properties of releases ---


def distance() -> Finding:
    """Largest distance of equal-key releases on neighbours; the limit is the charged 2 / z_eff.

    Every operator but one is zero, and the samples differ in size from the expected one.
    """
    described = query(mechanism.Poisson(rate=0.1), noise_multiplier=Saddle(1.0, 1.0))
    data = worst_pair(described, "replace_one")
    once = mechanism.Repeat(query=described, times=1)
    start = Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))
    keys = jax.random.split(jax.random.key(5), 500)

    def one(key: jax.Array, data: Saddle) -> Saddle:
        return sums.release(key, once, jnp.int32(0), PROBLEM, start, data)

    g = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(keys, data)
    square = sum(((x[:, 0] - x[:, 1])[:, 0] * mechanism.batch_size(described) / clip) ** 2
                 for x, clip in zip(g, described.clip, strict=True))
    limit = 2 / once.effective_noise_multiplier("replace_one")
    return Finding(float(jnp.sqrt(jnp.max(square))), limit)


def drawn(groups: bool = False) -> Finding:
    """How far the variance of noise and an operator that draws is from the sum of both.

    The operator of the first record adds what noise from its key would be; all others add nothing.
    """
    bits, runs = 20, RUNS

    def normal(key: jax.Array) -> jax.Array:
        return floored_normal(key, 1, jnp.int32(bits)) * 2.0**-bits

    def operator(z: Saddle, record: jax.Array, key: jax.Array) -> Saddle:
        return Saddle(record * normal(key).astype(jnp.float32), ())

    clip, z = 100.0, 0.01  # of deviation 1, and nothing is clipped
    w, record = jnp.zeros(1, jnp.float32), jnp.zeros(2, jnp.float32).at[0].set(1.0)
    made: mechanism.Repeat
    if groups:
        problem = group_attack.PROBLEM._replace(operator=operator, random=True)
        made = mechanism.Repeat(times=1, query=mechanism.GroupGradients(
            clip=clip, noise_multiplier=z, sizes=(2, 2)))
        one, every = (functools.partial(release_group_gradient, group=jnp.int32(0)),
                      functools.partial(release_weighted_gradient, v=jnp.ones(2, jnp.float32)))
        all_of = dataclasses.replace(made, query=dataclasses.replace(made.query, groups="all"))
        rows = jnp.stack([record, 0 * record])

        def releases(key: jax.Array) -> jax.Array:
            return 2 * jnp.stack([one(key, made, jnp.int32(0), problem, w, rows),
                                  every(key, all_of, jnp.int32(0), problem, w, rows)])
    else:
        made = mechanism.Repeat(times=1, query=query(
            FULL, 2, clip=Saddle(clip, None), noise_multiplier=Saddle(z, None)))
        alone = jmm.Problem(operator, random=True)

        def releases(key: jax.Array) -> jax.Array:
            return 2 * sums.release(key, made, jnp.int32(0), alone, Saddle(w, ()), record).w

    result = np.asarray(jax.jit(jax.vmap(releases))(jax.random.split(KEY, runs)), np.float64)
    away = np.abs(result.reshape(runs, -1).var(0) / 2 - 1)
    return Finding(float(away.max()), 6 * math.sqrt(2 / runs))


def _one_clipped(loss: Callable[..., jax.Array], w: jax.Array, x: jax.Array) -> Finding:
    """Norm of one clipped gradient, kept as factors, in clip norms."""
    total = clipping.clipped_sum(jmm.saddle_operator(loss), Saddle(1.0, None), strategy="ghost")
    return Finding(float(jnp.linalg.norm(total(Saddle(w, ()), x).w)), 1.0 + 1e-6)


def shared_rows() -> Finding:
    """Norm of one clipped gradient of rows that share a matrix and are equal, in clip norms."""
    return _one_clipped(lambda w, v, x: jnp.sum(x @ w), jnp.zeros((30, 40), jnp.float32),
                        jnp.ones((1, 3, 30), jnp.float32))


def stacked_matrices() -> Finding:
    """Norm of one clipped gradient of matrices that a scan goes over, in clip norms."""
    return _one_clipped(
        lambda w, v, x: jnp.sum(jax.lax.scan(lambda h, m: (h + h @ m, None), x, w)[0]),
        jnp.zeros((3, 20, 20), jnp.float32), jnp.ones((1, 20), jnp.float32))


def tied_table() -> Finding:
    """Norm of one clipped gradient of a row that is looked up and multiplied, in clip norms."""
    return _one_clipped(
        lambda w, v, x: (x @ w.T)[3] + jnp.sum(w[jnp.int32(3 * x[0])]),
        jnp.zeros((100, 8), jnp.float32), jnp.ones((1, 8), jnp.float32))


def others_of_nan() -> Finding:
    """What a record that is NaN moves the sum of the others by, in clip norms: convolutions."""
    def loss(w: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(jax.lax.conv(x[None, None], w, (1, 1), "VALID")))

    with jax.enable_x64(True):
        x = jax.random.normal(KEY, (4, 6, 6), jnp.float64)
        z = Saddle(jnp.full((2, 1, 3, 3), 0.1, jnp.float64), ())
        total = jax.jit(clipping.clipped_sum(jmm.saddle_operator(loss), Saddle(1.0, None),
                                             strategy="vmap"))
        moved = total(z, x.at[0, 0, 0].set(jnp.nan)).w - total(z, x[1:]).w
        return Finding(float(jnp.linalg.norm(moved)), 1e-9)


def slices() -> Finding:
    """The most that a record which leaves moves a sum in slices by, in clip norms."""
    x = jnp.full((20, 3), 50.0)
    total = clipping.clipped_sum(lambda z, x: Saddle(x, None), Saddle(1.0, None),
                                 strategy="microbatch", microbatch=16)
    sums: Any = jax.vmap(lambda mask: total(Saddle(jnp.zeros(3), ()), x, mask).w)
    without = sums(~jnp.eye(20, dtype=bool))
    moved = jnp.linalg.norm(sums(jnp.ones((1, 20), bool)) - without, axis=1)
    return Finding(float(jnp.max(moved)), 1.0 + 1e-5)


def one_norm() -> Finding:
    """Largest norm of one clipped record among records of all sizes, in clip norms."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 50)) * 10.0 ** rng.uniform(-1, 3, (300, 1))
    total = clipping.clipped_sum(lambda z, x: Saddle(x, None), Saddle(1.0, None))
    each = jax.vmap(lambda row: total(Saddle(jnp.zeros(50, jnp.float32), ()), row[None]).w)
    g = np.asarray(jax.jit(each)(jnp.asarray(x, jnp.float32)), np.float64)
    return Finding(float(np.linalg.norm(g, axis=1).max()), 1.0 + 1e-6)


def one_operator() -> Finding:
    """Largest norm of an operator that is not clipped, among records of all sizes, in its bound."""
    rng = np.random.default_rng(2)
    made = demo_games.robust_regression(feature_bound=1.0, label_bound=1.0, penalty=1.0,
                                        radius=Saddle(1.0, 0.5))
    x = rng.normal(size=(300, 5)) * 10.0 ** rng.uniform(-1, 3, (300, 1))
    z = made.problem.project(Saddle(*(jnp.asarray(rng.normal(size=5), jnp.float32),) * 2))
    g = jax.vmap(made.problem.operator, (None, 0))(
        z, (jnp.asarray(x, jnp.float32), jnp.asarray(rng.normal(size=300), jnp.float32)))
    norms = jnp.sqrt(jnp.sum(jnp.square(g.w), 1) + jnp.sum(jnp.square(g.v), 1))
    return Finding(float(norms.max() / made.bound), 1.0 + 1e-6)


def budget() -> Finding:
    """Releases that are not NaN; the limit is what the mechanism allows."""
    hyper = hyper_of(sgda, 3, query(FULL))
    data = Saddle(*(x[0] for x in worst_pair(hyper.query, "replace_one")))
    state = sgda.init(Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32)), hyper)
    update = jax.jit(lambda state: sgda.update(jax.random.key(2), state, data, hyper,
                                               PROBLEM))
    finite = 0
    for _ in range(5):
        state = update(state)
        finite += int(jnp.isfinite(state.z.w[0]))
    return Finding(finite, hyper.iterations)


@functools.cache
def _many() -> Any:
    return jnp.zeros(2**21, jnp.float32)


def loudness() -> Finding:
    """Described standard deviation over that of 2^21 released numbers; within chance of 1."""
    z, clip = 1.5, 0.5
    described = query(FULL, 1, clip=Saddle(clip, None), noise_multiplier=Saddle(z, None),
                      parameters=_many().size)
    made = mechanism.Repeat(query=described, times=1)
    start = Saddle(_many(), ())

    def operator(z: Saddle, x: Any) -> Saddle:
        return Saddle(jnp.zeros_like(z.w), ())

    g = jax.jit(lambda key: sums.release(key, made, jnp.int32(0), jmm.Problem(operator), start,
                                         jnp.zeros(1)).w)(KEY)
    deviation = float(jnp.sqrt(jnp.mean(jnp.square(g))))  # sums of floats are made pairwise
    return Finding(clip * z / deviation, 1 + 4 / math.sqrt(2 * g.size))


def law() -> Finding:
    """Distance of the noise's distribution function from the normal one, times root of runs."""
    hyper = hyper_of(sgda, 2, query(FULL))
    data = worst_pair(hyper.query, "replace_one")
    start = Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))
    result = auditor.pairs.rounds(KEY, sgda, hyper, start, data, PLAIN, first_release,
                            RUNS)
    x = np.ravel(result.noise / result.noise.std(0))
    return Finding(float(stats.kstest(x, "norm").statistic) * math.sqrt(x.size), 2.5)
