"""What a sampling or a description is stands with it: nobody else asks which one it is.

A new one is written here, in one class each, and runs, is calibrated and appears in statements
without an edit anywhere; what leaves an answer out, or is no kind at all, is refused.
"""

import ast
import dataclasses
import math
import pathlib
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle, mechanism
from jaxminimax.mechanism import Description, Leaf, Sampling, costs, sentences
from jaxminimax.mechanism.description import Facts, Kind
from jaxminimax.mechanism.repeat import OneRelease
from jaxminimax.mechanism.sampling import InGroups, Sample, SampleKeys, check_batch
from jaxminimax.mechanism.sentences import Words
from jaxminimax.releases import release_keys
from tests.helpers.lanes import rest_nightly
from tests.helpers.words import one_line

ROOT = pathlib.Path(jmm.__file__).parent


def kinds(of):
    """The names of all classes below one that can be made, of the library."""
    below = [x for x in of.__subclasses__() if x.__module__.startswith("jaxminimax.")]
    made = {x.__name__ for x in below if not x.__abstractmethods__}
    return made.union(*map(kinds, below))


SAMPLINGS = kinds(Sampling)
DESCRIPTIONS = kinds(Description) | kinds(OneRelease)

# Where a kind may be asked for by name, and why that takes no unknown one for another.
EXCEPTIONS = {
    ("releases/",): (DESCRIPTIONS, "a release answers one kind of release, and refuses all others"),
    ("audit/",): (DESCRIPTIONS, "an attack is made for one kind of release; for others there is "
                                "the pair of one's own"),
    ("drivers/",): (DESCRIPTIONS, "rows are sent ahead for one repeated query; others are "
                                  "refused"),
    ("algorithms/gda.py", "algorithms/recursive_sgda.py", "algorithms/recursion.py",
     "algorithms/recursive_inner.py"): (
        SAMPLINGS | DESCRIPTIONS, "gda refuses all but full batches; the steps of a theorem are "
                                  "for one sampling, and no privacy rests on them; recursive_inner "
                                  "refuses what repeats no release"),
    ("apps/accountant.py", "apps/planner.py"): (DESCRIPTIONS, "prints what it described itself"),
}


def named(node):
    return {x.attr if isinstance(x, ast.Attribute) else x.id for x in ast.walk(node)
            if isinstance(x, ast.Attribute | ast.Name)}


def asked(source):
    """The kinds that a file's functions ask for by name, and the lines."""
    actual = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "isinstance", "issubclass"):
            names = named(node.args[1])
        elif isinstance(node, ast.MatchClass):
            names = named(node.cls)
        elif isinstance(node, ast.Compare):  # type(x) is Full
            names = {getattr(x, "id", getattr(x, "attr", "")) for x in node.comparators}
        elif isinstance(node, ast.Dict):  # {Full: ...}[type(x)]
            names = {getattr(x, "id", getattr(x, "attr", "")) for x in node.keys if x is not None}
        else:
            continue
        actual |= {(name, node.lineno if hasattr(node, "lineno") else 0)
                   for name in names & (SAMPLINGS | DESCRIPTIONS)}
    return actual


def test_what_is_public_of_the_mechanisms_is_among_the_kinds():
    public = {x for x in dir(mechanism) if isinstance(getattr(mechanism, x), type)}
    assert public >= SAMPLINGS | DESCRIPTIONS
    assert public - SAMPLINGS - DESCRIPTIONS == {"AdaptiveClip", "Description", "Leaf",
                                                 "Repetitions", "Sampling"}


def test_nobody_asks_which_kind_it_is():
    assert len(EXCEPTIONS) <= 5
    used = set()
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("mechanism/"):
            continue
        where = [key for key in EXCEPTIONS if name.startswith(key)]
        allowed = EXCEPTIONS[where[0]][0] if where else set()
        actual = asked(path.read_text())
        assert not [(x, line) for x, line in actual if x not in allowed], name
        used |= set(where) if actual else set()
    assert used == set(EXCEPTIONS)  # none is left over


@pytest.mark.parametrize("line", [
    "isinstance(x, Poisson)", "isinstance(x, (int, Poisson))", "isinstance(x, m.Full | m.Poisson)",
    "type(x) is Poisson", "{Poisson: 1}[type(x)]", "type(x) == m.Poisson", "issubclass(t, Poisson)",
    "match x:\n    case Poisson(rate=rate): pass", "match x:\n    case m.Poisson(): pass",
])
def test_whoever_asks_is_seen(line):
    assert "Poisson" in {name for name, _ in asked(line)}


def test_nobody_is_seen_who_does_not_ask():
    assert not asked("x = Poisson(rate=0.1)\nisinstance(x, Sampling)\ny: Full = Full()")


# --- an answer that is missing ---


@pytest.mark.parametrize(("base", "missing"), [
    (base, name) for base in (Sampling, Leaf, OneRelease, Description)
    for name in sorted(base.__abstractmethods__)])
def test_what_leaves_an_answer_out_cannot_be_constructed(base, missing):
    answers = dict.fromkeys(base.__abstractmethods__, lambda *_: None)
    type("Whole", (base,), answers)()
    del answers[missing]
    with pytest.raises(TypeError, match=missing):
        type("Half", (base,), answers)()


class Unknown:
    """Has every answer of `Full`, and is none of the samplings."""

    def __getattr__(self, name):
        return getattr(jmm.Full(), name)


def query(sampling, population=40, z=3.0):
    return jmm.Query(clip=Saddle(2.0, 2.0), noise_multiplier=Saddle(z, z), sampling=sampling,
                     population=population)


LOSS = jmm.saddle_operator(lambda w, v, x: jnp.sum(w * x) + jnp.sum(v * x))
PROBLEM = jmm.Problem(LOSS)
START = Saddle(jnp.zeros(40), jnp.zeros(40))


def hyper(described, iterations=12):
    return jmm.sgda.Hyper(query=described, iterations=iterations, step=Saddle(1.0, 1.0))


def everything(described, rows):
    """Every public function that meets a description, of a query that is repeated."""
    made, own = jmm.Repeat(query=described, times=12), hyper(described)
    key = jax.random.key(0)
    return {
        "check": lambda: mechanism.composed.check(made),
        "epsilon": lambda: jmm.epsilon(made, 1e-5),
        "spent": lambda: jmm.epsilon(made, 1e-5, 3),
        "multiplier": lambda: jmm.accounting.effective_noise_multiplier(described),
        "calibrate": lambda: jmm.calibrate(jmm.sgda, own, 1.0, 1e-5),
        "calibrate_noise": lambda: jmm.accounting.calibrate_noise(made, 1.0, 1e-5),
        "calibrate_iterations": lambda: jmm.accounting.calibrate_iterations(jmm.sgda, own, 1.0,
                                                                            1e-5),
        "statement": lambda: jmm.statement(jmm.sgda, own, delta=1e-5),
        "release": lambda: jmm.release(key, made, jnp.int32(0), PROBLEM, START, rows),
        "run": lambda: jmm.run(key, START, rows, own, jmm.sgda, PROBLEM),
        "fit": lambda: jmm.fit(key, START, rows, own, jmm.sgda, PROBLEM, delta=1e-5,
                               progress=False),
        "audit": lambda: jmm.audit.audit(key, jmm.sgda, own, 1e-2, runs=8),
    }


@pytest.mark.parametrize("sampling", [Unknown(), "poisson", None, jmm.Full],
                         ids=["look-alike", "string", "None", "class"])
@pytest.mark.parametrize("name", [*everything(None, None)][:-1])
def test_an_unknown_sampling_is_refused(sampling, name):
    if name == "multiplier":
        sampling = sampling if sampling is not None else "none"
    with pytest.raises(ValueError, match=r"sampling must be Full\(\)"):
        everything(query(sampling), jnp.eye(40))[name]()


@pytest.mark.parametrize("described", ["a query", None, object(), Saddle(1.0, 1.0)],
                         ids=["string", "None", "object", "pair"])
def test_an_unknown_description_is_refused(described):
    for call in (lambda: mechanism.composed.check(described),
                 lambda: mechanism.composed.check(jmm.Sequence(parts=(described,))),
                 lambda: jmm.epsilon(described, 1e-5),
                 lambda: jmm.epsilon(jmm.Parallel(parts=(described,)), 1e-5, 1),
                 lambda: jmm.accounting.calibrate_noise(described, 1.0, 1e-5),
                 lambda: mechanism.releases(described),
                 lambda: mechanism.leaves(described),
                 lambda: mechanism.composed.charges(described, "replace_one")):
        with pytest.raises(ValueError, match="A mechanism is a Repeat, a Sequence or another"):
            call()


@pytest.mark.parametrize("name", ["check", "epsilon", "calibrate_noise", "statement", "run", "fit",
                                  "release", "multiplier"])
def test_what_a_repeat_cannot_repeat_is_refused(name):
    with pytest.raises(ValueError, match=r"Query|description"):
        everything(jmm.GroupLosses(bound=1.0, sizes=(40,)), jnp.eye(40))[name]()


# --- keys of passes ---


def test_keys_of_passes_are_apart_from_those_of_releases_and_from_each_other():
    run = jax.random.key(5)
    releases = [jax.random.fold_in(run, np.uint32(2**31 + k)) for k in (0, 1, 7, 2**31 - 2)]
    children = [jax.random.fold_in(key, i) for key in releases for i in range(3)]
    passes = [SampleKeys(key, run, part).pass_key(number) for key in releases[:1]
              for part in (0, 1, 5) for number in (0, 1, 5, 2**32 - 1)]
    every = np.stack([jax.random.key_data(x) for x in (run, *releases, *children, *passes)])
    assert len(np.unique(every, axis=0)) == len(every)
    again = SampleKeys(releases[3], run).pass_key(1)  # whichever release asks
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(passes[1]))


# --- a new sampling, in one class ---


@jmm.types.pytree_dataclass
class Shuffled(Sampling):
    """As `Disjoint`, in an order of the records that is drawn anew in every pass.

    Charged without amplification: given the order, it is `Disjoint`.
    """

    batch: int = jax.tree.static()

    ordered = False
    secret = False
    compares_absent = False
    compared_pairs = 1
    relations = (costs.REPLACE_ONE,)

    def check(self, population):
        check_batch(self.batch, population)

    def batch_size(self, population):
        return float(self.batch)

    def rows_read(self, population):
        return self.batch

    def rows_in_shard(self, population, size):
        return min(self.batch, size)

    def draw(self, keys, release, population):
        each = population // self.batch
        order = jax.random.permutation(keys.pass_key(release // each), population)
        first = (release % each) * self.batch
        rows = jax.lax.dynamic_slice_in_dim(order.astype(jnp.int32), first, self.batch)
        return Sample(rows, None, True)

    def charge(self, times, z, population):
        return costs.gaussian(math.ceil(times / (population // self.batch)), z)

    def overflow(self, population):
        return 0.0

    def summary(self, times, population):
        return f"batches of {self.batch} of {population} records, shuffled anew in every pass"

    def assumed(self):
        return ()

    def in_groups(self) -> InGroups:
        raise ValueError("groups have no passes.")

    def worst_case(self, population):
        return None


ROUNDS, BATCH, N = 12, 8, 40


def trace(data, sampling=None, z=0.0, key=0):
    """How each round moved w, without noise by default, times the batch size."""
    own = hyper(query(sampling or Shuffled(batch=BATCH), z=z), ROUNDS)
    _, w = jax.jit(lambda data: jmm.run(jax.random.key(key), START, data, own, jmm.sgda, PROBLEM,
                                        lambda state: state.z.w))(data)
    return -BATCH * np.diff(np.asarray(w), axis=0, prepend=0.0)


@pytest.mark.slow
def test_a_new_sampling_reads_every_record_once_a_pass_in_a_new_order():
    moves = trace(jnp.eye(N)).round(3)  # record i is the i-th unit vector
    assert set(np.unique(moves)) == {0.0, 1.0}
    np.testing.assert_array_equal(moves.sum(1), BATCH)
    passes = moves[:10].reshape(2, 5, N)
    np.testing.assert_array_equal(passes.sum(1), 1.0)
    assert np.any(passes[0] != passes[1])
    assert np.any(moves != trace(jnp.eye(N), key=1).round(3))
    in_order = trace(jnp.eye(N), jmm.Disjoint(batch=BATCH)).round(3)
    assert np.any(moves != in_order)


@pytest.mark.slow
@pytest.mark.parametrize("where", rest_nightly(["host", "mesh"], 1))
def test_a_new_sampling_runs_wherever_the_data_are(where):
    own = hyper(query(Shuffled(batch=BATCH)), ROUNDS)
    rows = np.random.default_rng(0).normal(size=(N, N))
    how = dict(delta=1e-5, every=5, progress=False)
    key = jax.random.key(3)
    device = jmm.fit(key, START, jnp.asarray(rows), own, jmm.sgda, PROBLEM, **how)
    if where == "host":
        other = jmm.fit(key, START, jmm.placement.HostData(rows), own, jmm.sgda, PROBLEM, **how)
    else:
        other = jmm.fit(key, START, rows, own, jmm.sgda, PROBLEM, **how,
                        mesh=jax.make_mesh((1,), ("data",)))
    assert np.all(np.isfinite(device.state.z.w))
    chex.assert_trees_all_close(other.state, device.state, rtol=1e-10, atol=1e-12)
    assert other.statement == device.statement
    assert "8 of 40 records, shuffled anew in every pass" in one_line(device.statement)


@pytest.mark.parametrize("times", [1, 5, 6, 12])
def test_a_new_sampling_is_priced_as_what_it_is_given_the_order(times):
    new, old = (jmm.Repeat(query=query(s), times=times)
                for s in (Shuffled(batch=BATCH), jmm.Disjoint(batch=BATCH)))
    assert jmm.epsilon(new, 1e-5) == jmm.epsilon(old, 1e-5) > 0
    assert jmm.epsilon(new, 1e-5, spent=1) == jmm.epsilon(old, 1e-5, spent=1)
    assert (jmm.accounting.calibrate_noise(new, 1.0, 1e-5).query.noise_multiplier
            == jmm.accounting.calibrate_noise(old, 1.0, 1e-5).query.noise_multiplier)
    one, two = (jmm.statement(jmm.sgda, hyper(x.query, times), delta=1e-5) for x in (new, old))
    assert (one.epsilon, one.charged_noise_multiplier) == (two.epsilon,
                                                           two.charged_noise_multiplier)
    assert sentences.PLACES in two.assumed
    assert sentences.PLACES not in one.assumed  # nobody's row is fixed


def test_a_new_sampling_is_refused_for_what_it_does_not_offer():
    described = query(Shuffled(batch=BATCH))
    with pytest.raises(ValueError, match="add_or_remove_one is offered"):
        jmm.epsilon(jmm.Repeat(query=described, times=2), 1e-5, neighbours="add_or_remove_one")
    groups = jmm.GroupGradients(clip=1.0, noise_multiplier=3.0, sampling=Shuffled(batch=2),
                                sizes=(9, 9))
    with pytest.raises(ValueError, match="groups have no passes"):
        jmm.epsilon(jmm.Repeat(query=groups, times=2), 1e-5)
    with pytest.raises(ValueError, match="No pair is known to be the worst"):
        everything(described, None)["audit"]()
    with pytest.raises(ValueError, match="batch must be at most"):
        mechanism.composed.check(jmm.Repeat(query=query(Shuffled(batch=41)), times=1))


@jmm.types.pytree_dataclass
class Present(jmm.Poisson):
    """A sampling with a proof for records that are added or removed, and for no others."""

    relations = ("add_or_remove_one",)


def test_no_relation_is_charged_that_a_sampling_has_no_proof_for():
    described = jmm.Repeat(query=query(Present(rate=0.2)), times=2)
    assert jmm.epsilon(described, 1e-5, neighbours="add_or_remove_one") > 0
    groups = jmm.GroupGradients(clip=1.0, noise_multiplier=3.0, sampling=Present(rate=0.2),
                                sizes=(9, 9))
    for made in (described, jmm.Repeat(query=groups, times=2)):
        for ask in (lambda made=made: jmm.epsilon(made, 1e-5),
                    lambda made=made: jmm.accounting.calibrate_noise(made, 1.0, 1e-5)):
            with pytest.raises(ValueError, match="no guarantee for neighbours='replace_one'"):
                ask()


@jmm.types.pytree_dataclass
class Absent(jmm.Poisson):
    """A sampling for replaced records whose charge compares with the sum without the record."""

    relations = (costs.REPLACE_ONE,)


def test_the_noise_of_a_solution_covers_the_pair_that_its_charge_compares():
    def unit(sampling):
        return mechanism.resolvent.noise_unit(jmm.mechanism.Resolvent(
            bound=1.0, prox=1.0, lipschitz=0.0, diameter=1.0, slack=0.5, population=40,
            sampling=sampling, assumes="monotone"))

    assert unit(Absent(rate=0.25)) == unit(jmm.Poisson(rate=0.25)) == pytest.approx(2.0 / 10)
    assert unit(jmm.FixedSize(batch=10)) == pytest.approx(1.5 / 10)


@jmm.types.pytree_dataclass
class Longer(Shuffled):
    """It says that it reads fewer rows than it does."""

    def rows_read(self, population):
        return self.batch - 1


def test_a_sample_of_more_rows_than_described_is_refused():
    """How wide the integers of a sum are, and how many slots a shard has, follow from it."""
    own = hyper(query(Longer(batch=BATCH)), 2)
    with pytest.raises(ValueError, match="drew 8 rows, and rows_read says 7"):
        jmm.run(jax.random.key(0), START, jnp.eye(N), own, jmm.sgda, PROBLEM)


# --- a new leaf, in one class ---


@jmm.types.pytree_dataclass
class ClipCounts(Leaf):
    """`times` noisy counts of the records whose gradient is within the clip norm.

    A record adds 1/2 if it is, -1/2 if not, so replacing it moves a count by at most 1: two units
    of 1/2.
    """

    population: int = jax.tree.static()
    times: int = jax.tree.static()
    noise_multiplier: float | None = None

    kind = 64

    def check(self):
        if self.times < 1:
            raise ValueError(f"times must be positive, got {self.times}.")

    def facts(self):
        return Facts(costs.CLIP_NORM, self.times, self.times, numbers=self.times, near=self.times,
                     repeats=True, records=self.population, noise=self.noise_multiplier,
                     parameters=1, exact=True)

    def words(self):
        return Words(
            f"{self.times} noisy count(s) of the {self.population} records within the clip norm.",
            enforced=("A record counts one half, with a sign.",),
            assumed=("The clip norm before the first count is public.",),
            unit="noise on the count / (1/2)")


COUNTS = ClipCounts(population=1000, times=100, noise_multiplier=200.0)
GRADIENTS = jmm.Repeat(query=query(jmm.Full(), 1000, 40.0), times=100)


def test_a_new_leaf_is_charged_beside_others():
    both = jmm.Sequence(parts=(GRADIENTS, COUNTS), in_turn=True)
    alone, counts, together = (jmm.epsilon(x, 1e-5) for x in (GRADIENTS, COUNTS, both))
    assert alone < together < alone + counts
    # one Gaussian: sqrt(100) 2 / 200, but for what rounding one number costs
    assert counts == pytest.approx(jmm.epsilon(jmm.mechanism.Solution(
        sensitivity=1.0, noise_multiplier=10.0, because="a count"), 1e-5), rel=1e-3)
    assert jmm.epsilon(both, 1e-5, spent=2) < together / 5
    assert mechanism.releases(both) == 200


@jmm.types.pytree_dataclass
class OtherCounts(ClipCounts):
    """Another class of the same kind."""


def test_two_classes_of_one_kind_have_different_keys():

    other = OtherCounts(population=1000, times=100)
    for several in (jmm.Sequence, jmm.Parallel):
        parts = several(parts=(COUNTS, other, GRADIENTS)).parts
        assert len({release_keys.stream(part) for part in parts}) == 3


@pytest.mark.parametrize("kind", [-1, 256, 64.5, None, Kind.NODE, Kind.INNOVATION])
def test_a_kind_of_other_keys_is_refused(kind):

    own = type("Own", (ClipCounts,), {"kind": kind})
    with pytest.raises(ValueError, match="kind of Own must be"):
        release_keys.stream(own(population=10, times=1))


def test_a_new_leaf_is_calibrated_and_told():
    made = jmm.accounting.calibrate_noise(jmm.Sequence(parts=(GRADIENTS, COUNTS)), 1.0, 1e-5)
    assert 0.99 < jmm.epsilon(made, 1e-5) <= 1.0
    ratio = made.parts[1].noise_multiplier / made.parts[0].query.noise_multiplier.w
    assert ratio == pytest.approx(5.0)
    stated = jmm.statement(jmm.sgda, hyper(GRADIENTS.query), delta=1e-5, alongside=(COUNTS,))
    for sentence in (COUNTS.summary(), *COUNTS.enforced(), *COUNTS.assumed(), COUNTS.unit):
        assert one_line(stated).count(sentence) == 1
    assert stated.enforced[0] == sentences.EXACT


def test_a_new_leaf_without_noise_or_out_of_range_is_refused():
    with pytest.raises(ValueError, match="noise_multiplier is not set"):
        jmm.epsilon(dataclasses.replace(COUNTS, noise_multiplier=None), 1e-5)
    with pytest.raises(ValueError, match="times must be positive"):
        jmm.epsilon(jmm.Sequence(parts=(GRADIENTS, dataclasses.replace(COUNTS, times=0))), 1e-5)
    assert jmm.epsilon(dataclasses.replace(COUNTS, noise_multiplier=0.0), 1e-5) == math.inf


# --- a new release of a Repeat, in one class ---


@jmm.types.pytree_dataclass
class Sums(OneRelease):
    """A class that states no more than it must."""

    population: int = jax.tree.static()
    sampling: Any = jax.tree.static(default=jmm.Poisson(rate=0.01))
    noise_multiplier: float = 4.0
    parameters: int = jax.tree.static(default=1)
    exact: bool = jax.tree.static(default=True)

    def check(self, repeat):
        """Checks nothing."""

    def words(self, repeat):
        return Words("Sums.")


def test_what_is_not_proven_for_a_new_release_is_refused():
    """Absent records and parts of the data have proofs for clipped sums of samples alone."""
    own = jmm.Repeat(query=Sums(population=100), times=10)
    assert jmm.epsilon(own, 1e-6) > 0
    with pytest.raises(ValueError, match="replace_one"):
        jmm.epsilon(own, 1e-6, neighbours="add_or_remove_one")
    with pytest.raises(ValueError, match="parts must be 1, got 3"):
        jmm.epsilon(dataclasses.replace(own, parts=3), 1e-6)
    for z in (-4.0, float("nan")):
        with pytest.raises(ValueError, match="noise_multiplier"):
            jmm.epsilon(jmm.Repeat(query=Sums(population=100, noise_multiplier=z), times=10), 1e-6)
