"""Planted bugs: each is caught by a detector that is silent on the code as it stands.

    python -m benchmarks.mutants [--markdown FILE]

A bug is planted by replacing one function in the module that uses it, for the time of one check;
no file is edited. A detector returns a number and the largest value that the number may have.
"""

import contextlib
import dataclasses
import functools
import importlib
import math
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks import group_attack, report, stream_attack
from jaxminimax import (
    Saddle,
    gda,
    gradients,
    group_sgd,
    noise,
    proximal,
    recursive_sgda,
    release_groups,
    release_solution,
    release_stream,
    sampling,
    sgda,
)
from jaxminimax import audit as auditor
from jaxminimax import mechanism as words
from jaxminimax.accounting import _calibrate, _charge, _curves, _epsilon
from jaxminimax.ghost import _factors

door = importlib.import_module("jaxminimax.release")

FULL = words.Full()
DELTA = 1e-2
RUNS = 40_000
RESULT = pathlib.Path(__file__).parent / "results" / "mutants.md"


class Finding(NamedTuple):
    """What a detector measured; it fires above the limit.

    Attributes:
      value: measured.
      limit: the most it may be.
    """

    value: float
    limit: float

    @property
    def fires(self) -> bool:
        """Whether a bug was found; a value that is no number is one."""
        return not self.value <= self.limit


class Mutant(NamedTuple):
    """A planted bug and what must find it.

    Attributes:
      name: in a few words, unique.
      breaks: what it takes away.
      caught_by: the detector, in words, and what its number is.
      plant: context manager that holds while the bug is there.
      detector: run with and without the bug.
    """

    name: str
    breaks: str
    caught_by: str
    plant: Callable[[], contextlib.AbstractContextManager]
    detector: Callable[[], Finding]


def _forget() -> None:
    """Empties every cache that an answer of the mutant could stay in."""
    _calibrate._CACHE.clear()
    for cached in (_epsilon.charged_epsilon, _curves._composed, _curves._renyi,
                   sampling._thresholds, sampling._wide):
        cached.cache_clear()


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Holds the bug in place, and leaves nothing of it behind."""
    _forget()
    try:
        with mutant.plant():
            yield
    finally:
        _forget()


def _replace(where: Any, name: str, make: Callable[[Any], Any]) -> Callable:
    """Plants `make(original)` as attribute `name` of `where`."""
    return lambda: mock.patch.object(where, name, make(getattr(where, name)))


# --- detectors ---


def _query(where: words.Full | words.Poisson | words.FixedSize | words.Disjoint,
           population: int = 20, **values: Any) -> words.Query:
    return words.Query(**{"clip": Saddle(0.5, 2.0), "sampling": where, "population": population,
                          **values})


def _hyper(algorithm: Any, rounds: int, query: words.Query) -> Any:
    if algorithm is proximal:
        point = words.Resolvent(bound=0.5, prox=2.0, lipschitz=0.0, diameter=10.0,
                                sampling=query.sampling, population=query.population,
                                assumes="lipschitz")
        return proximal.Hyper(query=proximal.certified(point), iterations=rounds)
    if algorithm is recursive_sgda:
        return recursive_sgda.Hyper(query=query, base=0.1, diameter=10.0, rounds=2,
                                    inner=rounds + 1)
    own = {"modulus": 1.0} if algorithm is gda else {"step": Saddle(0.5, 0.5)}
    return algorithm.Hyper(query=query, iterations=rounds, **own)


def _audit(rounds: int, where: Any = FULL, epsilon: float = 4.0, algorithm: Any = sgda,
           neighbours: str = "replace_one", joint: bool = False, **how: Any) -> Finding:
    """Lower bound on epsilon; the limit is the claimed one."""
    hyper = _hyper(algorithm, rounds, _query(where, joint=joint))
    hyper = jmm.calibrate(algorithm, hyper, epsilon, DELTA, neighbours=neighbours)
    found = auditor.audit(jax.random.key(11), algorithm, hyper, DELTA, runs=RUNS,
                          neighbours=neighbours, **how)
    return Finding(found.epsilon_lower, found.epsilon_claimed)


def _group_audit(rounds: int) -> Finding:
    """Lower bound on epsilon of an algorithm for groups; the limit is the claimed one."""
    hyper = jmm.calibrate(group_sgd, group_attack.hyper_of(group_sgd, FULL, rounds), 4.0, DELTA)
    found = group_attack.audit(jax.random.key(12), group_sgd, hyper, DELTA, runs=RUNS // 2)
    return Finding(found.epsilon_lower, found.epsilon_claimed)


def _stream_audit(number: int) -> Finding:
    """Lower bound on epsilon where a record is read once; the limit is the claimed one."""
    attack = stream_attack.attacks()[number]
    hyper = jmm.calibrate(attack.algorithm, attack.hyper, 4.0, DELTA)
    found = stream_attack.audit(jax.random.key(13), attack, hyper, DELTA, runs=RUNS // 2)
    return Finding(found.epsilon_lower, found.epsilon_claimed)


def _distance() -> Finding:
    """Largest distance of equal-key releases on neighbours; the limit is the charged 2 / z_eff.

    Every operator but one is zero, and the samples differ in size from the expected one.
    """
    query = _query(words.Poisson(rate=0.1), noise_multiplier=Saddle(1.0, 1.0))
    data = auditor.worst_pair(query, "replace_one")
    once = words.Repeat(query=query, times=1)
    start = Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))
    keys = jax.random.split(jax.random.key(5), 500)

    def one(key: jax.Array, data: Saddle) -> Saddle:
        return door.release(key, once, jnp.int32(0), auditor.PROBLEM, start, data)

    g = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(keys, data)
    square = sum(((x[:, 0] - x[:, 1])[:, 0] * words.batch_size(query) / clip) ** 2
                 for x, clip in zip(g, query.clip, strict=True))
    limit = 2 / _charge.effective_noise_multiplier(query)
    return Finding(float(jnp.sqrt(jnp.max(square))), limit * (1 + 1e-4))


def _shared_rows() -> Finding:
    """Norm of one clipped gradient of rows that share a matrix and are equal, in clip norms."""
    def loss(w: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(x @ w)

    total = gradients.clipped_sum(jmm.saddle_operator(loss), Saddle(1.0, None), strategy="ghost")
    alone = total(Saddle(jnp.zeros((30, 40), jnp.float32), ()), jnp.ones((1, 3, 30), jnp.float32))
    return Finding(float(jnp.linalg.norm(alone.w)), 1.0 + 1e-6)


def _budget() -> Finding:
    """Releases that are not NaN; the limit is what the mechanism allows."""
    hyper = _hyper(sgda, 3, _query(FULL, noise_multiplier=Saddle(1.0, 1.0)))
    data = Saddle(*(x[0] for x in auditor.worst_pair(hyper.query, "replace_one")))
    state = sgda.init(Saddle(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32)), hyper)
    finite = 0
    for _ in range(5):
        state = sgda.update(jax.random.key(2), state, data, hyper, auditor.PROBLEM)
        finite += int(jnp.isfinite(state.z.w[0]))
    return Finding(finite, hyper.iterations)


def _places() -> Finding:
    """How unequally often records are in releases that are not NaN, in standard deviations."""
    n, rate, count = 12, 0.5, 20_000
    query = _query(words.Poisson(rate=rate, capacity=6), n, clip=Saddle(1.0, None),
                   noise_multiplier=Saddle(0.0, None))
    once = words.Repeat(query=query, times=1)
    data = Saddle(jnp.eye(n, dtype=jnp.float32), jnp.zeros((n, 1), jnp.float32))
    start = Saddle(jnp.ones(n, jnp.float32), jnp.zeros(1, jnp.float32))

    def one(key: jax.Array) -> jax.Array:
        return door.release(key, once, jnp.int32(0), auditor.PROBLEM, start, data).w

    g = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), count)))
    inside = np.round(g[np.isfinite(g).all(1)] * rate * n)
    gap = inside[:, : n // 2].sum(1) - inside[:, n // 2:].sum(1)
    return Finding(abs(gap.mean()) / (gap.std() / math.sqrt(len(gap))), 5.0)


def _mass(one: Callable[[np.ndarray], np.ndarray], two: Callable[[np.ndarray], np.ndarray],
          epsilon: float) -> float:
    """Hockey-stick divergence of two densities, by a sum on a fine grid."""
    x = np.linspace(-60, 60, 480_001)
    return float(np.sum(np.maximum(one(x) - math.exp(epsilon) * two(x), 0)) * (x[1] - x[0]))


def _one_sample() -> Finding:
    """True delta at the claimed epsilon of both players on one Poisson sample, over the claimed."""
    rate, z, delta = 0.1, 0.6, 1e-2
    query = _query(words.Poisson(rate=rate), 1000, noise_multiplier=Saddle(z, z))
    joint = math.sqrt(2) / z  # distance of both players' releases from 0, noise 1
    return _of_a_sample(words.Repeat(query=query, times=1), rate, joint, delta)


def _one_group() -> Finding:
    """As `_one_sample`, of a group's gradient that is read for sure."""
    rate, z = 0.2, 0.6
    query = words.GroupGradients(clip=1.0, noise_multiplier=z, sampling=words.Poisson(rate=rate),
                                 sizes=(500,) * 2)
    return _of_a_sample(words.Repeat(query=query, times=1), rate, 1 / z, 1e-2)


def _of_a_sample(once: words.Repeat, rate: float, far: float, delta: float) -> Finding:
    """True delta at the claimed epsilon of a release at distance `far` from 0, over the claimed."""
    claimed = jmm.epsilon(once, delta)

    def density(towards: float, x: np.ndarray) -> np.ndarray:
        mixed = (1 - rate) * np.exp(-x**2 / 2) + rate * np.exp(-(x - towards) ** 2 / 2)
        return mixed / math.sqrt(2 * math.pi)

    true = _mass(functools.partial(density, far), functools.partial(density, -far), claimed)
    return Finding(true / delta, 1.0 + 1e-6)


def _laplace() -> Finding:
    """True delta of one Laplace release at the claimed epsilon, over the claimed delta."""
    z, delta = 0.5, 1e-3
    losses = words.GroupLosses(bound=1.0, sizes=(100,), noise_multiplier=z, times=1)
    gradient = words.Repeat(query=_query(FULL, noise_multiplier=Saddle(99.0, 99.0)), times=1)
    claimed = jmm.epsilon(words.Sequence(parts=(gradient, losses)), delta)
    true = max(0.0, 1 - math.exp((claimed - 1 / z) / 2))
    return Finding(true / delta, 1.0)


# --- bugs ---


def _half_of_one_player(gaussian: Any) -> Any:
    return lambda key, tree, std: gaussian(key, tree, std._replace(w=std.w / 2))


def _with_query(change: Callable[[Any, jax.Array], Any]) -> Callable[[Any], Any]:
    """A door that opens on a query other than the described one."""
    def make(release: Any) -> Any:
        def changed(key: Any, mechanism: Any, spent: Any, *args: Any, **how: Any) -> Any:
            query = change(mechanism.query, spent)
            return release(key, dataclasses.replace(mechanism, query=query), spent, *args, **how)

        return changed

    return make


def _silent_once(query: words.Query, spent: jax.Array) -> words.Query:
    loud = jnp.where(spent % 10 == 3, 0.0, 1.0)
    scaled = jax.tree.map(lambda z: z * loud.astype(jnp.float32), query.noise_multiplier)
    return dataclasses.replace(query, noise_multiplier=scaled)


def _twice_the_rate(draw: Any) -> Any:
    def changed(key: Any, query: Any, spent: Any) -> Any:
        if not isinstance(query.sampling, words.Poisson):
            return draw(key, query, spent)
        capacity = words.rows_read(query)
        more = words.Poisson(rate=min(1.0, 2 * query.sampling.rate), capacity=capacity)
        return draw(key, dataclasses.replace(query, sampling=more), spent)

    return changed


def _by_realised_size(clipped_sum: Any) -> Any:
    def changed(operator: Any, clip: Any, **how: Any) -> Any:
        def total(z: Any, data: Any, mask: Any) -> Any:
            factor = 2.0 / jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
            return jax.tree.map(lambda x: x * factor, clipped_sum(operator, clip, **how)(
                z, data, mask))

        return total

    return changed


def _same_key_in_two_rounds(release: Any) -> Any:
    def changed(key: Any, mechanism: Any, spent: Any, *args: Any, **how: Any) -> Any:
        return release(key, mechanism, spent - spent % 2, *args, **how)

    return changed


def _one_draw_for_both(gaussian: Any) -> Any:
    return lambda key, tree, std: Saddle(*(gaussian(key, *x)
                                           for x in zip(tree, std, strict=True)))


def _not_advanced(update: Any) -> Any:
    def changed(key: Any, state: Any, *args: Any) -> Any:
        return update(key, state, *args)._replace(spent=state.spent)

    return changed


def _any_fits(draw: Any) -> Any:
    return lambda key, query, spent: draw(key, query, spent)._replace(fits=jnp.array(True))


def _first_batch_only(draw: Any) -> Any:
    return lambda key, query, spent: draw(key, query, jnp.zeros_like(spent))


def _players_apart(one: Any) -> Any:
    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, words.Repeat):
            return one(leaf)
        w, v = words.check_noise(leaf.query)
        return _charge.together(*(one(dataclasses.replace(leaf, query=dataclasses.replace(
            leaf.query, noise_multiplier=z))) for z in (Saddle(w, None), Saddle(None, v))))

    return changed


def _one_release_free(one: Any) -> Any:
    def changed(leaf: Any) -> Any:
        return one(dataclasses.replace(leaf, times=max(1, leaf.times - 1)))

    return changed


def _laplace_free(one: Any) -> Any:
    return lambda leaf: _charge.Charge() if isinstance(leaf, words.GroupLosses) else one(leaf)


def _by_all_records(laplace: Any) -> Any:
    """Scale B / K instead of B / n_i: the sensitivity of the mean over all groups."""
    def changed(*args: Any) -> Any:
        n = jnp.asarray(group_attack.SIZES)
        return laplace(*args) * n / jnp.sum(n)

    return changed


def _one_noise_a_level(node: Any) -> Any:
    return lambda key, level, index, *rest: node(key, level, jnp.int32(1), *rest)


def _one_node_charged(one: Any) -> Any:
    return lambda leaf: one(dataclasses.replace(leaf, leaves=1)
                            if isinstance(leaf, words.Tree) else leaf)


def _half_the_laplace(standard_laplace: Any) -> Any:
    return lambda *args: standard_laplace(*args) / 2


def _rate_over_groups(one: Any) -> Any:
    """Charges a group's Poisson sample as if each of the groups were drawn equally often."""
    def changed(leaf: Any) -> Any:
        rare = words.Poisson(rate=leaf.query.sampling.rate / len(group_attack.SIZES))
        return one(dataclasses.replace(leaf, query=dataclasses.replace(leaf.query, sampling=rare)))

    return changed


ONE, FIVE = functools.partial(_audit, 1), functools.partial(_audit, 5)
GROUPS = functools.partial(_group_audit, 2)
PHASES, LEAVES, ROLES = (functools.partial(_stream_audit, k) for k in (0, 1, 3))
AUDIT = "audit: lower bound on epsilon"
NOT_ADVANCED = _replace(sgda, "update", _not_advanced)

MUTANTS = (
    Mutant("noise of one player halved", "standard deviation of player w", AUDIT,
           _replace(door, "gaussian", _half_of_one_player),
           FIVE),
    Mutant("noise skipped once in ten rounds", "one release is exact", AUDIT,
           _replace(sgda, "release", _with_query(_silent_once)),
           functools.partial(_audit, 10)),
    Mutant("noise of a constant key", "noise differs in no run", AUDIT,
           _replace(door, "gaussian", lambda gaussian: lambda key, tree, std: gaussian(
               jax.random.key(0), tree, std)),
           ONE),
    Mutant("noise of bounded range", "tails of the noise: uniform, same variance", AUDIT,
           _replace(noise, "standard_normal", lambda _: lambda key, shape, dtype, wanted: (
               jax.random.uniform(key, shape, dtype, -(3**0.5), 3**0.5))),
           ONE),
    Mutant("clip norm doubled", "sensitivity", AUDIT,
           _replace(gradients, "_weight", lambda weight: lambda clip, ratio, present: weight(
               clip, ratio / 2, present)),
           ONE),
    Mutant("clip lifted", "sensitivity", AUDIT,
           _replace(gradients, "_weight", lambda weight: lambda clip, ratio, present: weight(
               clip, jnp.minimum(ratio, 0.5), present)),
           ONE),
    Mutant("cross terms of shared rows dropped", "sensitivity, of gradients kept as factors",
           "norm of one clipped gradient over the clip norm",
           _replace(_factors, "_gram", lambda gram: lambda x: gram(x) * jnp.eye(
               x.shape[1], dtype=x.dtype)[None]),
           _shared_rows),
    Mutant("joint clip of each player alone", "sensitivity, one clip for both", AUDIT,
           _replace(gradients, "_together", lambda _: lambda ratio: ratio),
           functools.partial(_audit, 1, joint=True)),
    Mutant("displacement of a proximal point halved", "sensitivity of a solution", AUDIT,
           _replace(door, "displacement", lambda length: lambda query: length(query) / 2),
           functools.partial(_audit, 1, algorithm=proximal)),
    Mutant("division by the realised batch size", "sensitivity, where few records were drawn",
           "distance of equal-key releases on neighbours",
           _replace(door, "clipped_sum", _by_realised_size), _distance),
    Mutant("one key for two rounds", "independence of releases", AUDIT,
           _replace(sgda, "release", _same_key_in_two_rounds), FIVE),
    Mutant("one noise draw for both players", "independence of players", AUDIT,
           _replace(door, "gaussian", _one_draw_for_both), ONE),
    Mutant("spent not advanced (noise)", "independence of releases", AUDIT, NOT_ADVANCED,
           FIVE),
    Mutant("spent not advanced (budget)", "the end of the budget",
           "releases that are not NaN", NOT_ADVANCED, _budget),
    Mutant("overflow does not fail closed", "uniformity: the first records are kept",
           "first against last records, standard deviations",
           _replace(door, "draw", _any_fits), _places),
    Mutant("sampling rate doubled", "amplification", AUDIT,
           _replace(door, "draw", _twice_the_rate),
           functools.partial(_audit, 4, words.Poisson(rate=0.2))),
    Mutant("batches not disjoint", "one read a pass", AUDIT,
           _replace(door, "draw", _first_batch_only),
           functools.partial(_audit, 4, words.Disjoint(batch=5))),
    Mutant("all parts the first one", "one part a record", AUDIT,
           _replace(door, "_part", lambda part: lambda mechanism, spent: 0 * spent),
           functools.partial(_audit, 4, algorithm=recursive_sgda)),
    Mutant("factor two of replace-one dropped", "accountant", AUDIT,
           _replace(_curves, "shift", lambda _: lambda neighbours: 1.0),
           functools.partial(_audit, 5, epsilon=1.0, algorithm=gda)),
    Mutant("players charged as two samples", "accountant: one sample for both",
           "true delta over the claimed one",
           _replace(_charge, "_one", _players_apart), _one_sample),
    Mutant("one release not charged", "accountant", AUDIT,
           _replace(_charge, "_one", _one_release_free), functools.partial(_audit, 2)),
    Mutant("group losses not charged", "accountant: Laplace releases",
           "true delta over the claimed one",
           _replace(_charge, "_one", _laplace_free), _laplace),
    Mutant("noise of a group's gradient halved", "standard deviation", AUDIT,
           _replace(door, "gaussian", lambda gaussian: lambda key, tree, std: gaussian(
               key, tree, std / 2)),
           GROUPS),
    Mutant("clip of a group's gradient doubled", "sensitivity", AUDIT,
           _replace(gradients, "_weight", lambda weight: lambda clip, ratio, present: weight(
               clip, ratio / 2, present)),
           GROUPS),
    Mutant("losses not clipped", "sensitivity of losses", AUDIT,
           _replace(release_groups, "_clipped", lambda _: lambda each, bound: each),
           GROUPS),
    Mutant("Laplace noise by the number of all records", "scale of the noise", AUDIT,
           _replace(release_groups, "standard_laplace", _by_all_records), GROUPS),
    Mutant("sensitivity of a certified solution halved", "sensitivity of a phase", AUDIT,
           _replace(release_solution, "solution_length",
                    lambda length: lambda query, reg_w: length(query, reg_w) / 2), PHASES),
    Mutant("one noise for all nodes of a level", "independence of a tree's nodes", AUDIT,
           _replace(release_stream, "_node", _one_noise_a_level), LEAVES),
    Mutant("a tree charged as one node", "accountant: nodes that a record is in", AUDIT,
           _replace(_charge, "_one", _one_node_charged), LEAVES),
    Mutant("noise of single losses halved", "scale", AUDIT,
           _replace(release_stream, "standard_laplace", _half_the_laplace), ROLES),
    Mutant("group charged at its rate over the number of groups", "accountant: adaptive groups",
           "true delta over the claimed one", _replace(_charge, "_one", _rate_over_groups),
           _one_group),
)


@functools.cache
def _without_bugs(detector: Callable[[], Finding]) -> Finding:
    _forget()
    return detector()


def check(mutant: Mutant) -> tuple[Finding, Finding]:
    """What the detector measures without the bug and with it."""
    sound = _without_bugs(mutant.detector)
    with planted(mutant):
        return sound, mutant.detector()


def markdown(rows: list[tuple[Mutant, Finding, Finding]]) -> str:
    """The table, in Markdown."""
    lines = ["| planted bug | breaks | caught by | with the bug | limit | without | caught |",
             "| --- | --- | --- | ---: | ---: | ---: | --- |"]
    for mutant, sound, broken in rows:
        verdict = "yes" if broken.fires and not sound.fires else "NO"
        lines.append(f"| {mutant.name} | {mutant.breaks} | {mutant.caught_by} | "
                     f"{broken.value:.4g} | {broken.limit:.4g} | "
                     f"{sound.value:.4g} | {verdict} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = report.Parser(prog="python -m benchmarks.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("--markdown", type=report.output(".md"), help=f"default: {RESULT.name}")
    args = parser.parse_args(argv)
    rows = []
    for mutant in MUTANTS:
        rows.append((mutant, *check(mutant)))
        report.say(markdown(rows[-1:]).splitlines()[-1])
    text = ("# Planted bugs\n\nWritten by `python -m benchmarks.mutants`. Audits are at delta = "
            f"{DELTA:g}, {RUNS} runs on each data set, confidence 0.999; their limit is the "
            "claimed epsilon.\n\n" + markdown(rows))
    if args.markdown is None:
        RESULT.parent.mkdir(exist_ok=True)
    (args.markdown or RESULT).write_text(text, encoding="utf-8")
    caught = all(broken.fires and not sound.fires for _, sound, broken in rows)
    if not caught:
        report.say("A PLANTED BUG WAS NOT CAUGHT, or a detector fires without one: see the table.")
    return 0 if caught else 1


if __name__ == "__main__":
    sys.exit(main())
