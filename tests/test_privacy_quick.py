"""The laws that privacy rests on, each for all kinds of releases, in about twenty-five CPU-seconds.

Noise size: `test_noise_has_the_described_deviation`. Clip norms, joint ones and bounds of losses:
`test_one_record_moves_a_release_by_what_is_charged`. The budget: the last of the detectors, and
`test_a_release_is_answered_as_often_as_described_and_then_no_more` of `test_opening`.
The sampling rate: `test_samples_have_the_described_rate_and_are_independent`. What is charged,
rounding to the grid included: `test_the_accountant_charges_the_gaussian_that_runs`. Several records
of one person: `test_noise_for_several_records_is_calibrated_to_all_of_them`. Clipping by factors of
a gradient and of narrow types: the detectors.

At the end are five probes of what lies between the parts: a training with a ledger, for several
records of a person; a training that was stopped; ledgers that refuse, at every call; shards and
devices; several records on samples of parts in turn.

Other tests hold these laws more sharply and in more cases, most of them in the slow lane.
"""

import dataclasses
import functools
import inspect
import json
import math
import os
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.privacy.mutants import between, detectors, subtle
from jaxminimax import Saddle, estimators
from jaxminimax.apps.commands import COMMANDS, parser_of
from jaxminimax.apps.tables import Charged, Number, Schema, defaults, labels, statistics, unfinished
from jaxminimax.apps.tables.labels import Amount, Several
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.base import programs
from jaxminimax.drivers import long_runs, runs
from jaxminimax.mechanism.factorisation import coefficients
from jaxminimax.mechanism.resolvent import noise_unit
from jaxminimax.mechanism.solutions import solution_length
from jaxminimax.releases import opening, reading, sums
from jaxminimax.releases.sums import release
from tests.helpers import two_devices
from tests.releases.test_opening import RELEASES, ROWS, SIZES, Case, N, W

KEYS = jax.random.split(jax.random.key(1), 4000)
SIGMAS = 4.5
BOTH = jmm.Problem(lambda z, x: x)
CLIP, NOISE = Saddle(0.5, 2.0), Saddle(1.5, 0.8)
# two records whose gradients are nearly opposite, of a loss that is half the square of w x
RECORDS = jnp.array([[1.0, -0.999], [-0.999, 1.0]])
LOSSES = jnp.array([[1e3, 1e3], [0.0, 0.0]])  # and two whose losses are far apart


def sum_of_both(joint, noise):
    query = jmm.Query(clip=CLIP, noise_multiplier=noise, population=N, joint=joint)
    return Case(lambda key, m, k, x: jnp.concatenate(
        release(key, m, k, BOTH, Saddle(W, W), Saddle(x, -x))),
        jmm.Repeat(query=query, times=3), 3, ROWS, "")


def gradient_of(kind, label):
    """Gradients of a table's label at a model of zeros, where they are linear in the features."""
    query = jmm.Query(clip=Saddle(kind.clip, None), noise_multiplier=Saddle(1.0, None),
                      population=N)
    rest = jnp.broadcast_to(jnp.asarray(label, jnp.float32), (N, 1, *np.shape(label)))
    start = kind.start(1, Moments(np.zeros(1), np.ones(1), kind.prior(np.zeros(kind.numbers))))
    return Case(lambda key, m, k, x: release(
        key, m, k, kind.problem, Saddle(jnp.zeros_like(start), ()),
        (x[:, None], rest, jnp.ones((N, 1)))).w, jmm.Repeat(query=query, times=3), 3, ROWS, "")


class Law(NamedTuple):
    """A release and what it is described to be.

    Attributes:
      case: the release, as in `test_opening`.
      unit: noise multiplier 1.0 of each number, or of all.
      spread: deviation of the noise in these units.
      moves: most that a record moves it by, in these units.
      pair: two records that move it by as much, if they are far from 0.
      place: of the record.
      spent: of the release whose noise is measured.
      keys: for how many releases.
    """

    case: Case
    unit: Any
    spread: float = 1.0
    moves: float = 2.0
    pair: jax.Array = 1e6 * RECORDS
    place: tuple = (0,)
    spent: int = 0
    keys: int = 2000


def laws():
    point = RELEASES["proximal point"].mechanism.query
    phase = RELEASES["solution"].mechanism
    groups = 1 / np.array(SIZES)
    correlated = jmm.mechanism.CorrelatedSums(clip=1.0, noise_multiplier=1.0, leaves=3, bands=3)
    both = np.repeat(np.array(CLIP) / N, 2)
    losses = dict(pair=LOSSES, keys=4000)
    each = dict(moves=math.sqrt(len(SIZES)), place=(slice(None), 0))  # one record of each group
    several, amount = Several(3), Amount(0.0, 1.0)
    return {
        "gradient of three logits": Law(gradient_of(several, [0, 1, 0]), several.clip / N),
        "gradient of Huber's loss": Law(gradient_of(amount, 9.0), amount.clip / N),
        "sum": Law(RELEASES["sum"], 1 / N),
        "sum of a part": Law(RELEASES["sum of a part"], 2 / N, spent=3),
        # of two records of eight; noise begins anew with every second release
        "sum of parts in turn": Law(RELEASES["sum of parts in turn"], 4 / N, np.linalg.norm(
            coefficients(2) * 2.0**-17), spent=3),
        "sum of parts in turn, anew": Law(RELEASES["sum of parts in turn"], 4 / N, spent=2),
        "sums of both players": Law(sum_of_both(False, NOISE),
                                    np.repeat(np.array(NOISE), 2) * both),
        "joint clip": Law(sum_of_both(True, Saddle(1.5, 1.5)), 1.5 * both),
        "proximal point": Law(RELEASES["proximal point"], noise_unit(point), pair=RECORDS),
        "gradient of a group": Law(RELEASES["group gradient"], groups[1], place=(1, 0)),
        "gradient of all groups": Law(RELEASES["all groups' gradient"], 0.9 * groups[0],
                                      place=(0, 0)),
        "losses": Law(RELEASES["group losses"], groups, 2**0.5, **each, **losses),
        "losses, Gaussian": Law(RELEASES["Gaussian losses"], groups, **each, **losses),
        "solution": Law(RELEASES["solution"], solution_length(phase, phase.reg_w), moves=1.0,
                        pair=RECORDS, place=(0, 0)),
        "bound from records held out": Law(
            RELEASES["bound from records held out"], (1 + 2e-3) * 2 * 2.0 / N, moves=1.0,
            pair=RECORDS),
        "node of a tree": Law(RELEASES["leaf"], 1.0, spent=2),
        "correlated sums": Law(RELEASES["leaf"]._replace(mechanism=correlated), 1.0, np.linalg.norm(
            coefficients(3) * 2.0**-17), spent=2),
        "loss of a record": Law(RELEASES["loss"], 1.0, 2**0.5, moves=1.0, place=(0, 0), **losses),
    }


LAWS = laws()
every_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def with_noise(mechanism, factor):
    """A description with so many times its noise; a factor of 0 turns the noise off."""
    if isinstance(mechanism, jmm.Repeat):
        return dataclasses.replace(mechanism, query=with_noise(mechanism.query, factor))
    return dataclasses.replace(mechanism, noise_multiplier=jax.tree.map(
        lambda z: factor * z, mechanism.noise_multiplier))


@functools.cache
def program(opened):
    return jax.jit(jax.vmap(opened, (0, None, None, None)))


def released(law, spent=0, factor=1.0, data=None):
    """Releases with all keys over the unit of their noise, a row each."""
    actual = program(law.case.opened)(
        KEYS[:law.keys], with_noise(law.case.mechanism, factor), jnp.int32(spent),
        law.case.data if data is None else data)
    return np.asarray(actual).reshape(law.keys, -1) / law.unit


@every_law
def test_noise_has_the_described_deviation(law):
    """In units of a clip norm, or what stands in its place, the noise multiplier.

    The squares of Laplace numbers have a relative deviation of sqrt(5), of normal ones sqrt(2).
    """
    noise = (released(law, law.spent) - released(law, law.spent, factor=0.0)) / law.spread
    for unit in np.unique(law.unit):  # players and groups by themselves
        own = noise[:, np.broadcast_to(law.unit, noise.shape[1:]) == unit]
        assert abs(own.std() - 1) < SIGMAS / 2 * math.sqrt((5 if law.spread == 2**0.5 else 2)
                                                           / own.size)


@every_law
def test_one_record_moves_a_release_by_what_is_charged(law):
    """With equal keys, whose noise is equal."""
    limit = law.moves / law.case.mechanism.effective_noise_multiplier("replace_one")
    one, other = (released(law, data=law.case.data.at[law.place].set(x)) for x in law.pair)
    moved = np.linalg.norm(one - other, axis=1)
    assert moved.max() <= limit
    if law.pair is not RECORDS:
        assert moved.min() > 0.997 * limit


def test_samples_have_the_described_rate_and_are_independent():
    """Of every record, of all of them together; no two of 8,000 releases have the same sample."""
    n, rate, count = 50, 0.25, 8000
    query = jmm.Query(clip=CLIP, sampling=jmm.Poisson(rate=rate), population=n)
    made = jmm.Repeat(query=query, times=count)

    @jax.jit
    @jax.vmap
    def members(spent):
        sample = reading.sample_of_release(KEYS[0], made, spent)
        return jnp.zeros(n, bool).at[sample.rows].max(sample.valid)

    inside = np.asarray(members(jnp.arange(count)))
    spread = math.sqrt(rate * (1 - rate) / count)
    assert np.abs(inside.mean(0) - rate).max() < SIGMAS * spread
    # samples that do not fit their slots are drawn again, at most one in a thousand
    assert -rate / 1000 < inside.mean() - rate + SIGMAS * spread / math.sqrt(n)
    assert inside.mean() - rate < SIGMAS * spread / math.sqrt(n)
    assert len(np.unique(inside, axis=0)) == count


@pytest.mark.parametrize("times", [1, 7])
def test_the_accountant_charges_the_gaussian_that_runs(times):
    """Of z' in 50 digits, rounding to the grid included: epsilon is that of its exact profile."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(5.0, None), population=10)
    delta = 1e-6
    epsilon = jmm.epsilon(jmm.Repeat(query=query, times=times), delta)
    charged = subtle.charge_in_50_digits(5.0, 5.0, query.parameters, absent=False)
    mu = 2 * mpmath.sqrt(times) / mpmath.mpf(str(charged))
    exact = mpmath.findroot(lambda e: mpmath.ncdf(mu / 2 - e / mu) - mpmath.e**e * mpmath.ncdf(
        -mu / 2 - e / mu) - delta, epsilon)
    assert exact <= epsilon <= exact * (1 + 1e-6)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_noise_for_several_records_is_calibrated_to_all_of_them(rate):
    """Epsilon of so many records meets the target; of one record it would be met with less."""
    query = jmm.Query(clip=Saddle(1.0, None), population=100, sampling=jmm.Poisson(rate=rate))
    hyper = jmm.sgda.Hyper(query=query, iterations=5, step=Saddle(1.0, 1.0))
    one, three = (jmm.calibrate(jmm.sgda, hyper, 1.0, 1e-5, people=k) for k in (1, 3))
    z = [x.query.noise_multiplier.w for x in (one, three)]
    assert z[1] > 2 * z[0]
    if rate == 1:  # the distance of three records is three times that of one
        assert z[1] == pytest.approx(3 * z[0], rel=1e-2)
    for hyper, people in ((one, 1), (three, 3)):
        actual = jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-5, people=people)
        assert 0.999 < actual <= 1.0


@pytest.mark.parametrize("detector", [
    subtle.dilated, subtle.one_float16_record, subtle.quietest_part, detectors.budget],
    ids=lambda detector: detector.__name__)
def test_no_detector_of_planted_bugs_fires(detector):
    assert not detector().fires


# --- probes of what lies between the parts ---


class ReleasedError(Exception):
    """Something was about to be released."""


def release_nothing(*_, **__):
    raise ReleasedError


def table(n):
    a = np.linspace(-1, 1, n)
    return {"a": a, "b": a[::-1], "y": (a > 0).astype(int)}


SCHEMA = Schema({"a": Charged(), "b": Number(-1, 1)}, "y", 1)
STATED = {"epsilon": 2.0, "delta": 1e-5}


def ledger(path, epsilon=9.0, **how):
    return jmm.accounting.Ledger(path, epsilon=epsilon, delta=1e-4, **how)


class StoppedError(Exception):
    """Ends a training on the way."""


def test_a_training_is_for_all_records_of_a_person_and_goes_on_with_its_key(tmp_path, monkeypatch):
    """By noise, statement and ledger; what was released before it stopped is not released anew."""
    schema, people = Schema({"a": Number(-1, 1)}, "y", 1), 3
    books, made, how = ledger(tmp_path / "l", people=people), [], STATED | {"people": people}

    def stop(*_):
        raise StoppedError

    def once(*given):
        made.append(sound(*given))
        return made[-1]

    def go(**more):
        return jmm.tables.train(table(97), schema, **how, **more)

    sound, run = statistics.release_moments, {"folder": tmp_path / "run", "ledger": books}
    monkeypatch.setattr(statistics, "release_moments", once)
    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr(labels, "release_calibration", stop)
        go(**run)
    assert len(made) == 1
    (charged,) = books.statement().runs
    with pytest.raises(ValueError, match="another seed or key"):
        go(key=jax.random.key(5, impl="threefry2x32"), **run)
    with unfinished.Unfinished(tmp_path / "run") as job:
        key = job.key
    resumed = go(**run)
    assert len(made) == 1
    np.testing.assert_array_equal(resumed.weights, go(key=key).weights)
    np.testing.assert_array_equal(made[0].mean, made[1].mean)

    chosen = defaults(97, schema, people=people, **STATED)
    attained = jmm.epsilon(resumed.described, 1e-5, people=people)
    assert resumed.described == chosen.mechanism()
    assert 0.998 * 2 < attained <= 2
    assert jmm.epsilon(resumed.described, 1e-5) < 0.9
    assert resumed.statement.people == people
    assert resumed.statement.epsilon == pytest.approx(attained, rel=1e-9)
    (run,) = books.statement().runs
    assert run["charge"] == charged["charge"] == books._rule.charge(
        resumed.described, 1e-4, "replace_one", people)
    for other in (1, 2):
        with pytest.raises(ValueError, match="people = 3, and the ledger for"):
            go(ledger=ledger(tmp_path / f"of {other}", people=other))


# A ledger refuses, or accepts, before anything is released. A program may be traced before.


def by_train(books, path, people):
    jmm.tables.train(table(83), SCHEMA, ledger=books, people=people, **STATED)


def by_command(*words):
    """A command on a file, with the ledger that is at the path."""
    def call(books, path, people):
        columns = table(79)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(
            *columns.values(), strict=True))]
        (path / "t.csv").write_text("\n".join(lines))
        args = parser_of("").parse_args([
            words[0], str(path / "t.csv"), "--label", "y", "--positive", "1", "--numeric", "b=-1:1",
            "--epsilon", "2", "--delta", "1e-5", "--ledger", str(path / "l"), "--people",
            str(people), *words[1:]])
        COMMANDS[words[0]](args)

    return call


def by_estimator(form, n):
    def call(books, path, people):
        columns, more, grouped = table(n), {}, ("Group" in form.__name__, "Fair" in form.__name__)
        y, groups = columns["y"], {"groups": np.arange(n) % 2} if any(grouped) else {}
        if "Regressor" in form.__name__:
            y, more = columns["a"], {"label_range": (-1, 1)}
        form(ledger=books, people=people, **STATED, **more).fit(columns["b"][:, None], y, **groups)

    return call


def by_driver(driver, n):
    def call(books, path, people):
        query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0), population=n)
        hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2)
        rest = jnp.ones((n, 2)), hyper, jmm.sgda, two_devices.BOTH
        start = Saddle(jnp.zeros(2), jnp.zeros(2))
        if driver is jmm.fit:
            jmm.fit(KEYS[0], start, *rest, delta=1e-5, ledger=books, progress=False, people=people)
        else:  # for as many people as the ledger
            data, hyper, *rest = rest
            jmm.sweep(KEYS[:2].reshape(1, 2), start, data, jmm.stack([hyper]), *rest, ledger=books)

    return call


CALLS = {"train": by_train, "fit": by_driver(jmm.fit, 89), "sweep": by_driver(jmm.sweep, 61),
         "train, as a command": by_command("train", "--ranges", "charged", "--numeric", "a"),
         "check, as a command": by_command("check"),
         **{name: by_estimator(getattr(estimators, name), 67 - k)
            for k, name in enumerate(estimators.__all__)}}


@pytest.mark.parametrize("people", [1, 3])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_released_before_a_ledger_accepts_it(name, people, tmp_path, monkeypatch):
    """For as many records of a person. What is released first is a part of what was charged."""
    asked, reserve = [], jmm.accounting.Ledger.reserve

    def first(key, described, *_):
        assert dataclasses.replace(described, place=0) in [
            dataclasses.replace(leaf, place=0) for leaf in asked[-1].flattened()]
        raise ReleasedError

    def noted(self, described, hyper=None, **how):
        asked.append(described if hyper is None else described.mechanism(hyper))
        return reserve(self, described, hyper, **how)

    def outside_a_program(key, described, spent, point, data, **how):
        if not programs.is_traced(key, data):
            raise ReleasedError
        return opened(key, described, spent, point, data, **how)

    opened = opening.open_release
    monkeypatch.setattr(opening, "open_release", outside_a_program)
    monkeypatch.setattr(sums, "compiled_release", first)
    for where, program in ((long_runs, "_piece"), (runs, "call_kept")):
        monkeypatch.setattr(where, program, release_nothing)
    monkeypatch.setattr(jmm.accounting.Ledger, "reserve", noted)

    def refused(words, **how):
        books = ledger(tmp_path / "l", **how)
        with pytest.raises(ValueError, match=words):
            CALLS[name](books, tmp_path, people)
        assert not books.statement().runs
        (tmp_path / "l").unlink()

    refused("are left", epsilon=0.1, people=people)
    if name != "sweep":
        refused(f"people = {people}, and the ledger for", people=2)
    books = ledger(tmp_path / "l", people=people)
    with pytest.raises(ReleasedError):
        CALLS[name](books, tmp_path, people)
    (run,), (*_, described) = books.statement().runs, asked
    assert run["charge"] == books._rule.charge(described, 1e-4, "replace_one", people)
    if name not in ("fit", "sweep"):  # which calibrate nothing
        assert 0.998 * 2 < jmm.epsilon(described, 1e-5, people=people) <= 2


def test_every_function_with_a_ledger_is_among_them():
    public = {name: getattr(where, name) for where in (jmm, jmm.tables, estimators)
              for name in dir(where)}
    asking = {name for name, x in public.items() if (
        inspect.isfunction(x) or (inspect.isclass(x) and not issubclass(x, Exception)))
        and "ledger" in inspect.signature(x).parameters}
    # whose releases are the caller's steps: tests/drivers/test_private_gradient.py has its own
    assert asking - {"private_gradient"} == set(CALLS) - {"train, as a command",
                                                          "check, as a command"}
    parsers = parser_of("")._subparsers._group_actions[0].choices
    assert {name for name, one in parsers.items() if "--ledger" in one._option_string_actions} == {
        "train", "check"}


def test_shards_and_devices_add_up_to_one_release_with_one_noise():
    """To the grid with noise, and to rounding without: two shards on each of two devices."""
    child = subprocess.run([sys.executable, two_devices.__file__], check=True, capture_output=True,
                           text=True, env=os.environ)
    many = np.array(json.loads(child.stdout))
    alone = np.array(two_devices.answers(two_devices.ROWS))
    assert np.abs(alone[:, 0] - alone[:, 1]).min() > 1e-3
    np.testing.assert_allclose(many[:, 0], alone[:, 0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(many[:, 1], alone[:, 1], rtol=0, atol=1e-15)


@pytest.mark.parametrize("people", [1, 2, 3])
def test_several_records_on_samples_of_parts_in_turn_are_charged_as_they_are(people, real_noise):
    """All in one part, which is the worst: k coins in each of two windows, the second begun."""
    (steps, sigma), delta = between.in_turn(), 1e-3
    charged = jmm.epsilon(steps, delta, people=people)
    low, high = (between.delta_of_two_windows(e * charged, people, 0.5, sigma)
                 for e in (1.001, 0.999))
    assert low < delta < high
