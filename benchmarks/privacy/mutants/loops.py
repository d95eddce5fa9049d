"""Planted bugs of releases in a user's own loop, `private_gradient`, and what finds them.

They are those that let one noise serve two points, that hand rows out, or that are not charged: a
hash that leaves a part of the point out, keys that do not follow it, a state or a register that is
not asked, a `vmap`, a program that nobody checks.
"""

import math
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.mutants import plants
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.accounting import Ledger
from jaxminimax.drivers import point_register, private_gradient
from jaxminimax.gradients import summation
from jaxminimax.releases import data_flow, noisy_sums, point_keys

AIMS: dict[str, tuple[Any, str]] = {
    "key of a point": (point_keys, "key_at"),
    "digest of a point": (point_keys, "digest"),
    "noise of a step": (noisy_sums, "floored_normal"),
    "weight in a step": (summation, "clip_weight"),
    "a step": (private_gradient._Release, "update"),
    "check of a step": (data_flow, "check"),
    "one lane": (private_gradient, "_in_one_lane"),
    "numbers handed out": (point_register.Register, "issue"),
    "points admitted": (point_register.Register, "admit"),
    "marks of a key": (point_register.Register, "bind"),
    "lines of a journal": (point_register.Register, "_write"),
    "charge of a loop": (Ledger, "reserve"),
}

N, WIDTH = 20, 400
_ROWS = np.ones((N, 1), np.float32)
_Z = Saddle(jnp.full(WIDTH, 0.5, jnp.float32), jnp.full(300, 0.5, jnp.float32))
_PROBLEM = jmm.Problem(lambda z, x: Saddle(jnp.tanh(z.w) + x[0], jnp.tanh(z.v) + x[0]))


def _described(**more: Any) -> jmm.Repeat:
    query = jmm.Query(clip=Saddle(1e-3, 1e-3), population=N,
                      noise_multiplier=Saddle(1e3, 1e3), **more)
    return jmm.Repeat(query=query, times=8)


def _private(described: Any = None, *, key: Any = None, data: Any = _ROWS,
             problem: jmm.Problem = _PROBLEM, **how: Any) -> Any:
    return jmm.private_gradient(jmm.noise.secret_key() if key is None else key, data, problem,
                                _described() if described is None else described, **how)


def _refused(*calls: Callable[[], Any]) -> Finding:
    """Calls that are let through; none may be."""
    through = 0
    for call in calls:
        try:
            jax.block_until_ready(call())
            through += 1
        except (ValueError, RuntimeError):
            pass
    return Finding(float(through), 0.0)


# --- the detectors ---


def _equal_noise(moved: Callable[[Any, Any], tuple[Any, Any]], described: Any = None) -> Finding:
    """Share of the noise that two points have in common, which may be that of chance."""
    private = _private(described)
    state = private.init(_Z)
    ticket = next(private.tickets(state))
    step = jax.jit(lambda state, z: private.update(ticket, state, z)[0])
    one, other = step(state, _Z), step(*moved(state, _Z))
    # 1 - E[(a - b)^2] / (2 E[a^2]), 0 for independent noise within six standard errors
    a, b = (np.asarray(x.w, np.float64) for x in (one, other))
    return Finding(float(1 - np.mean((a - b) ** 2) / (2 * np.mean(a**2))), 6 / math.sqrt(WIDTH))


def near_points() -> Finding:
    return _equal_noise(lambda state, z: (state, z._replace(w=z.w.at[-1].add(1e-5))))


def points_of_the_second_player() -> Finding:
    return _equal_noise(lambda state, z: (state, z._replace(v=z.v.at[-1].add(1e-5))))


def points_in_the_last_bit() -> Finding:
    return _equal_noise(lambda state, z: (state, z._replace(w=z.w.at[0].set(
        np.nextafter(np.float32(0.5), np.float32(1))))))


def points_in_another_order() -> Finding:
    """Numbers that agree where one coordinate of a point changes places with a row of the hash."""
    private = _private()
    state = private.init(_Z)
    ticket = next(private.tickets(state))
    step = jax.jit(lambda z: private.update(ticket, state, z)[0])
    zero = jnp.zeros(WIDTH)
    one, other = (step(_Z._replace(w=zero.at[place].set(1e-5))) for place in (0, 256))
    return Finding(float(np.mean(np.asarray(one.w) == np.asarray(other.w))), 0.5)


def clip_norms() -> Finding:
    """Two clip norms at one point; their noise in units of them."""
    described = _described(adaptive=jmm.AdaptiveClip())
    private = _private(described)
    state = private.init(_Z)
    ticket = next(private.tickets(state))
    step = jax.jit(lambda state: private.update(ticket, state, _Z)[0])
    larger = state._replace(clip=jax.tree.map(lambda c: 2 * c, state.clip))
    a, b = np.asarray(step(state).w), np.asarray(step(larger).w) / 2
    return Finding(float(1 - np.mean((a - b) ** 2) / (2 * np.mean(a**2))), 6 / math.sqrt(WIDTH))


def variance() -> Finding:
    """Variance that is described over the one that is measured, of five steps."""
    private = _private()
    state, drawn = private.init(_Z), []
    step = jax.jit(lambda ticket, state: private.update(ticket, state, _Z))
    for ticket, _ in zip(private.tickets(state), range(5), strict=False):
        g, state = step(ticket, state)
        drawn.append(np.asarray(g.w, np.float64) * N)
    # 2,000 numbers of variance 1
    return Finding(float(1 / np.var(np.stack(drawn))), 1 + 5 * math.sqrt(2 / (5 * WIDTH)))


def moved_by_a_record() -> Finding:
    """How far a record moves a step without noise, over twice its clip norm."""
    query = jmm.Query(clip=Saddle(0.5, 0.5), population=N, noise_multiplier=Saddle(0.0, 0.0))
    large = [_ROWS.copy(), _ROWS.copy()]
    large[0][0], large[1][0] = 1e4, -1e4
    steps = []
    for data in large:
        private = _private(jmm.Repeat(query=query, times=2), data=data)
        state = private.init(_Z)
        ticket = next(private.tickets(state))
        steps.append(jax.jit(lambda t, s, p=private: p.update(t, s, _Z)[0].w)(ticket, state))
    return Finding(float(jnp.linalg.norm(steps[0] - steps[1])) * N / (2 * 0.5), 1.01)


def other_states() -> Finding:
    """Releases of a ticket with a state that is not its own, and that are finite."""
    private = _private()
    state = private.init(_Z)
    step = jax.jit(lambda ticket, state: private.update(ticket, state, _Z))
    tickets = private.tickets(state)
    first = next(tickets)
    _, after = step(first, state)
    pairs = (next(tickets), state), (first, after)
    return Finding(float(sum(np.isfinite(step(*pair)[0].w).any() for pair in pairs)), 0.0)


def numbers_again() -> Finding:
    """Numbers that are handed out a second time."""
    private = _private()
    state = private.init(_Z)
    next(private.tickets(state))
    return _refused(lambda: next(private.tickets(state)).number,
                    lambda: private.take(state, 1).number)


def second_points() -> Finding:
    """Second points of a number that is watched."""
    private = _private(_described(sampling=jmm.Disjoint(batch=5)))
    state = private.init(_Z)
    ticket = next(private.tickets(state))
    step = jax.jit(lambda z: private.update(ticket, state, z)[0])
    jax.block_until_ready(step(_Z))
    return _refused(lambda: step(_Z._replace(w=_Z.w + 1)))


def other_operators_and_rows() -> Finding:
    """Operators and data sets under a key that was used with others."""
    key, scale = jmm.noise.secret_key(), [1.0]
    problem = jmm.Problem(lambda z, x: Saddle(scale[0] * jnp.tanh(z.w) + x[0], z.v + x[0]))
    private = _private(key=key, problem=problem)
    state = private.init(_Z)
    ticket = next(private.tickets(state))
    private.update(ticket, state, _Z)
    scale[0] = 2.0
    return _refused(lambda: private.update(ticket, state, _Z)[0],
                    lambda: _private(key=key, problem=problem, data=_ROWS + 1).init(_Z))


def lanes() -> Finding:
    """Points that a `vmap` releases under one number."""
    private = _private()
    state = private.init(_Z)
    ticket = next(private.tickets(state))
    return _refused(lambda: jax.vmap(lambda z: private.update(ticket, state, z)[0])(
        jax.tree.map(lambda x: jnp.stack([x, x + 1]), _Z)))


def rows_past_the_release() -> Finding:
    """Public terms that read the rows, in a step that is not refused."""
    data = jnp.asarray(_ROWS)
    problem = _PROBLEM._replace(public=lambda z: Saddle(z.w + jnp.mean(data), z.v))
    private = _private(data=data, problem=problem)
    state = private.init(_Z)
    ticket = next(private.tickets(state))
    return _refused(lambda: private.update(ticket, state, _Z)[0])


def journal() -> Finding:
    """Releases that a process which goes on does not find in the journal."""
    key = jmm.noise.secret_key()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "journal")
        private = _private(key=key, journal=path)
        state = private.init(_Z)
        step = jax.jit(lambda ticket, state: private.update(ticket, state, _Z))
        jax.block_until_ready(step(next(private.tickets(state)), state))
        private._run.register._held.close()
        point_register._REGISTERS.clear()
        again = _private(key=key, journal=path)
        points = len(again._run.register.points)
        again._run.register._held.close()
    return Finding(float(1 - points), 0.0)


def charged() -> Finding:
    """The share of a budget that a loop should take, over the one that it takes."""
    described = jmm.Repeat(query=jmm.Query(
        clip=Saddle(1.0, 1.0), population=N, noise_multiplier=Saddle(40.0, 40.0)), times=8)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(pathlib.Path(folder, "ledger.json"), epsilon=4.0, delta=1e-3)
        rule = ledger._rule
        cost = rule.charge(described, ledger.delta, ledger.neighbours, 1)[rule.main]
        _private(described, ledger=ledger)
        taken = 1 - ledger.remaining().share
    return Finding(cost / rule.limits[rule.main] / max(taken, 1e-9), 1 + 1e-6)


# --- the plants ---


def _state(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda update: lambda self, key, state, *args: update(self, key, change(state), *args)


def one_release_reserved(reserve: Any) -> Any:
    return lambda self, described, *args, **how: reserve(
        self, described.truncated(1), *args, **how)


def halved(digest: Any) -> Any:
    """The hash of upper halves of words."""
    return lambda words, point: digest(words, jax.tree.map(
        lambda x: jax.lax.bitcast_convert_type(x, jnp.uint32) >> 16, point))


def without_places(digest: Any) -> Any:
    """The hash of every row by itself, as if all had the first place."""
    def changed(words: Any, point: Any) -> Any:
        rows = [row for x in jax.tree.leaves(point) for row in point_keys._rows(jnp.asarray(x))]
        return sum((digest(words, row) for row in rows), jnp.zeros(2, jnp.uint32))

    return changed


_SHARED, _THROUGH = "noise that two points share", "calls that are let through"
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("keys of a loop do not follow the point", "keys: one noise, one point", "key of a point",
     lambda _: lambda root, digest: root, near_points, _SHARED),
    ("a point hashed by its first leaf", "hash: every leaf", "digest of a point",
     lambda digest: lambda words, point: digest(words, jax.tree.leaves(point)[:1]),
     points_of_the_second_player, _SHARED),
    ("a point hashed by the upper halves of words", "hash: every bit", "digest of a point",
     halved, points_in_the_last_bit, _SHARED),
    ("a point hashed without places", "hash: every place", "digest of a point", without_places,
     points_in_another_order, "numbers that are equal"),
    ("clip norms left out of the hash", "hash: clip norms", "digest of a point",
     lambda digest: lambda words, point: digest(words, point[0]), clip_norms, _SHARED),
    ("noise of a loop a tenth low", "standard deviation", "noise of a step",
     plants.quieter(0.9), variance, "described variance over the measured"),
    ("clip of a loop lifted", "sensitivity", "weight in a step", plants.lifted,
     moved_by_a_record, "distance over twice the clip norm"),
    ("a ticket goes with every state", "one state, one ticket", "a step",
     _state(lambda state: state._replace(spent=state.number)), other_states,
     "finite releases of other states"),
    ("a state goes with every ticket", "one state, one ticket", "a step",
     _state(lambda state: state._replace(number=state.spent)), other_states,
     "finite releases of other states"),
    ("numbers handed out again", "one number, one ticket", "numbers handed out",
     lambda _: lambda self, number, again: None, numbers_again, _THROUGH),
    ("a register that admits all", "one number, one point", "points admitted",
     lambda _: lambda self, words: np.bool_(True), second_points, _THROUGH),
    ("marks of a key not compared", "one key, one operator and data set", "marks of a key",
     lambda _: lambda self, name, mark, what: None, other_operators_and_rows, _THROUGH),
    ("vmap over the points of a loop", "one number, one point", "one lane",
     lambda _: lambda released: released, lanes, _THROUGH),
    ("a step that nobody checks", "rows leave by releases only", "check of a step",
     lambda _: lambda *args: None, rows_past_the_release, _THROUGH),
    ("a journal that is not written", "one number, one point", "lines of a journal",
     lambda _: lambda self, line: None, journal, "releases that are not in it"),
    ("a loop charged for one release", "charge of a ledger", "charge of a loop",
     one_release_reserved, charged, "due share of the budget over the taken"),
)
