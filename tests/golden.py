"""States of short runs and their charges, which no change of the code may move.

    python tests/golden.py            compares with `golden.json`, on one device and on two
    python tests/golden.py --mesh     compares the states of two devices alone
    python tests/golden.py --write    writes the file anew

A case is an algorithm with a sampling. The file has the numbers of each state, a digest of its
bits, and epsilon. Bits are those of one processor and one JAX; others may round differently, so
only numbers are compared there. Another draw, sample or clip norm moves all of them.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""),
                                        "--xla_force_host_platform_device_count=2"])

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.placement import shard

FILE = pathlib.Path(__file__).with_suffix(".json")
DELTA = 1e-6
N, D, SIZES = 48, 3, (10, 7, 16)
ROWS = np.random.default_rng(0)
DATA = tuple(jnp.asarray(ROWS.normal(size=shape), jnp.float32) for shape in ((N, D), (N,)))
GROUPS = (jnp.asarray(ROWS.normal(size=(3, 16, D)), jnp.float32),
          jnp.asarray(np.sign(ROWS.normal(size=(3, 16))), jnp.float32))
START = Saddle(jnp.full(D, 0.1, jnp.float32), jnp.full(2, -0.1, jnp.float32))
MODEL = Saddle(START.w, ())
STEP = Saddle(0.1, 0.1)
SAMPLINGS = {"full": jmm.Full(), "poisson": jmm.Poisson(rate=0.3),
             "fixed": jmm.FixedSize(batch=9), "disjoint": jmm.Disjoint(batch=8)}

KNOWN = json.loads(FILE.read_text()) if FILE.exists() else {}


def objective(w, v, record):
    x, y = record
    return jnp.tanh(w @ x - y) * jnp.sum(v) + 0.1 * (w @ x) ** 2 - 0.2 * jnp.sum(v**2)


def drawn(z, record, key):
    return Saddle(z.w + record[0] * jax.random.normal(key, (D,)), z.v + record[1])


def loss(w, record):
    return jnp.log1p(jnp.exp(-record[1] * (record[0] @ w)))


GAME = jmm.Problem(jmm.saddle_operator(objective),
                   project=lambda z: jax.tree.map(lambda a: jnp.clip(a, -2, 2), z))
RANDOM = jmm.Problem(drawn, random=True)
WORST = jmm.problems.worst_group(loss, jmm.problems.ball(2.0), lipschitz=4.0, bound=2.0,
                                 smooth=4.0, convex=True)
RANDOM_WORST = WORST._replace(
    loss=lambda w, record, key: loss(w, record) * (1 + jax.random.uniform(key)), random=True,
    operator=lambda z, record, key: Saddle(
        jax.grad(loss)(z.w, record) + jax.random.normal(key, (D,)), ()))


def query(**values):
    return jmm.Query(**{"clip": Saddle(1.0, 0.7), "noise_multiplier": Saddle(1.3, 0.9),
                        "population": N, **values})


def rounds(algorithm, problem=GAME, iterations=3, **values):
    """A run on rows: algorithm, settings, problem, start, data."""
    hyper = algorithm.Hyper(iterations=iterations, **{"step": STEP, **values})
    return algorithm, hyper, problem, START, DATA


def on_rows():
    """Cases of algorithms that read rows of one population."""
    poisson, joint = SAMPLINGS["poisson"], {"joint": True, "noise_multiplier": Saddle(1.0, 1.0)}
    for name, sampling in SAMPLINGS.items():
        yield f"sgda/{name}", rounds(jmm.sgda, query=query(sampling=sampling))
    for name, values in {
            "quiet player": {"noise_multiplier": Saddle(1.3, 0.0)},
            "one player": {"clip": Saddle(1.0, None), "noise_multiplier": Saddle(1.3, None)},
            "floats": {"exact": False, "sampling": poisson},
            "joint": joint,
            "adaptive": {"adaptive": jmm.AdaptiveClip(quantile=Saddle(0.5, 0.5)),
                         "sampling": poisson},
            "bands": {"bands": 2, "sampling": SAMPLINGS["disjoint"]}}.items():
        yield f"sgda/{name}", rounds(jmm.sgda, query=query(**values))
    yield "sgda/random", rounds(jmm.sgda, RANDOM, query=query(sampling=poisson))
    yield "gda", (jmm.gda, jmm.gda.Hyper(query=query(), modulus=1.0, offset=2.0, iterations=3),
                  GAME, START, DATA)
    yield "optimistic", rounds(jmm.optimistic, query=query(sampling=poisson))
    yield "extragradient", rounds(jmm.extragradient, query=query(sampling=SAMPLINGS["fixed"]))
    yield "recursive_sgda", (jmm.recursive_sgda, jmm.recursive_sgda.Hyper(
        query=query(population=N // 2), base=0.1, diameter=4.0, rounds=2, inner=2),
        GAME, START, DATA)
    yield "recursive_inner", (jmm.recursive_inner, jmm.recursive_inner.Hyper(
        phase=jmm.optimistic.Hyper(query=query(population=N // 2), step=STEP, iterations=2),
        base=0.1, inner=jmm.optimistic, rounds=2), GAME, START, DATA)


def on_streams():
    """Cases of algorithms that read a record a round."""
    sums = {"clip": 1.0, "noise_multiplier": 1.1, "leaves": 4}
    for name, made, problem in (
            ("tree", jmm.mechanism.TreeSums(**sums), GAME),
            ("correlated", jmm.mechanism.CorrelatedSums(**sums, bands=2), GAME),
            ("random", jmm.mechanism.TreeSums(**sums, exact=False), RANDOM)):
        yield f"ftrl/{name}", (jmm.ftrl, jmm.ftrl.Hyper(query=made, step=0.1), problem, START, DATA)
    both = jmm.Parallel(parts=(jmm.mechanism.TreeSums(**sums),
                               jmm.mechanism.RecordLosses(bound=2.0, noise_multiplier=1.0,
                                                          times=4)),
                        in_turn=True)
    yield "group_oco", (jmm.group_oco, jmm.group_oco.Hyper(
        query=both, step=0.1, weight_step=0.1, sizes=SIZES), WORST, MODEL, GROUPS)


def on_groups():
    """Cases of algorithms that read groups of records."""
    one = jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=SIZES)
    losses = jmm.GroupLosses(bound=2.0, noise_multiplier=3.0, sizes=SIZES)
    select = jmm.mechanism.Selection(bound=2.0, noise_multiplier=3.0, sizes=SIZES)
    for end, problem in (("", WORST), ("/random", RANDOM_WORST)):
        for name, sampling in {"full": jmm.Full(), "poisson": jmm.Poisson(rate=0.4),
                               "fixed": jmm.FixedSize(batch=4)}.items():
            noise = "gaussian" if name == "full" else None
            yield f"group_sgd/{name}{end}", (jmm.group_sgd, jmm.group_sgd.Hyper(
                query=dataclasses.replace(one, sampling=sampling), step=0.5, weight_step=0.3,
                losses=dataclasses.replace(losses, noise=noise), iterations=2),
                problem, MODEL, GROUPS)
        yield f"balanced_groups{end}", (jmm.balanced_groups, jmm.balanced_groups.Hyper(
            query=dataclasses.replace(one, groups="all"), losses=losses, step=0.5, iterations=2,
            balanced=0.0), problem, MODEL, GROUPS)
        yield f"active_groups{end}", (jmm.active_groups, jmm.active_groups.Hyper(
            query=one, losses=select, step=0.5, iterations=2), problem, MODEL, GROUPS)
    yield "active_groups/losses", (jmm.active_groups, jmm.active_groups.Hyper(
        query=one, losses=dataclasses.replace(losses, only_argmax=True), step=0.5, iterations=2),
        WORST, MODEL, GROUPS)


def on_solutions():
    """Cases of algorithms that release solutions of regularised problems."""
    game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(1.0, 1.0))
    at, data = Saddle(jnp.full(2, 0.1), jnp.full(2, 0.2)), (DATA[0][:24, :2], DATA[0][24:, 1:])
    point = jmm.mechanism.Resolvent(bound=6.0, prox=3.0, lipschitz=1.5, diameter=4.0,
                                    noise_multiplier=2.0, population=24, assumes="monotone")
    yield "proximal", (jmm.proximal, jmm.proximal.Hyper(
        query=jmm.proximal.certified(point), iterations=2), game, at, data)
    parts = dataclasses.replace(point, population=8, prox=1.0, doubling=True)
    yield "recursive", (jmm.recursive, jmm.recursive.Hyper(
        query=jmm.recursive.certified(parts, 3), iterations=3), game, at, data)
    worst = jmm.mechanism.GroupSolution(
        bound=2.0, lipschitz=4.0, smooth=4.0, diameter=4.0, reg_w=3.0, reg_lam=1.0,
        noise_multiplier=2.0, sizes=SIZES, phases=2)
    yield "phased_erm", (jmm.phased_erm, jmm.phased_erm.Hyper(
        query=jmm.phased_erm.certified(worst)), WORST, MODEL, GROUPS)


CASES = {name: case for part in (on_rows, on_streams, on_groups, on_solutions)
         for name, case in part()}
# samplings of rows, sums of a stream and groups
QUICK = ("sgda/full", "sgda/poisson", "sgda/fixed", "sgda/bands", "ftrl/tree",
         "group_sgd/poisson")
MESH = ("sgda/full", "sgda/poisson", "sgda/random", "sgda/adaptive", "group_sgd/full",
        "group_sgd/fixed/random", "balanced_groups", "balanced_groups/random", "active_groups",
        "ftrl/tree")


def run(name, mesh=None):
    """The state that a case ends in."""
    algorithm, hyper, problem, start, data = CASES[name]
    if mesh is not None:
        data = shard(data, mesh, **({"grouped": True} if start is MODEL else {}))
    return jmm.run(jax.random.key(0), start, data, hyper, algorithm, problem).state


def numbers(state):
    """Every number of a state, as Python floats."""
    return [float(x) for leaf in jax.tree.leaves(state) for x in np.ravel(np.asarray(leaf))]


def bits(state):
    """A digest of a state: its types, its shapes and its bits."""
    digest = hashlib.sha256()
    for leaf in map(np.asarray, jax.tree.leaves(state)):
        digest.update(str((leaf.dtype.name, leaf.shape)).encode() + leaf.tobytes())
    return digest.hexdigest()[:16]


def epsilon(name):
    """What the whole run is charged, at `DELTA`."""
    algorithm, hyper, *_ = CASES[name]
    return jmm.epsilon(algorithm.mechanism(hyper), DELTA)


def differs(values, name):
    """Whether a state or a charge is not the one of the file, up to rounding."""
    case = KNOWN[name]
    return not (np.allclose(values, case["numbers"], rtol=1e-4, atol=1e-6)
                and np.isclose(epsilon(name), case["epsilon"], rtol=1e-9, atol=0.0))


def main(write, only_mesh):
    mesh, lines, moved, exactly = jax.make_mesh((2,), ("data",)), [], [], 0
    cases = MESH if only_mesh else tuple(CASES)
    for name in cases:
        states = [*([] if only_mesh else [run(name)]), *([run(name, mesh)] if name in MESH else [])]
        digests = [bits(state) for state in states]
        if write:
            lines.append(f"{json.dumps(name)}: " + json.dumps(
                {"epsilon": epsilon(name), "bits": digests, "numbers": numbers(states[0])}))
        else:
            exactly += digests == KNOWN[name]["bits"][-len(digests):]
            moved += [name for state in states if differs(numbers(state), name)]
    if write:
        FILE.write_text("{" + ",\n ".join(lines) + "}\n")
        return 0
    print(f"{exactly} of {len(cases)} as they were, bit for bit; moved: {moved or 'none'}")
    return int(bool(moved))


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv, "--mesh" in sys.argv))
