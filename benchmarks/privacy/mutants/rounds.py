"""Planted bugs of the check that a round reads rows through its releases only, and what finds them.

They are those that its proof in `releases.data_flow` names: an operand, a predicate, a loop, a
program inside an operation, a derivative or a number that nobody looks at. Each detector traces
rounds that leak in the one way, and counts those that are let through.
"""

import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.algorithms import descent
from jaxminimax.mechanism import Query, Repeat
from jaxminimax.releases import data_flow, record_isolation, release_operation
from jaxminimax.releases.data_flow import Key, Read, Rows, Value

AIMS: dict[str, tuple[Any, str]] = {
    "release in a round": (data_flow._Flow, "release"),
    "results of a condition": (data_flow, "_joined"),
    "carries of a loop": (data_flow, "_carried"),
    "slices of a scan": (data_flow, "_sliced"),
    "what is read": (data_flow, "_read"),
    "programs inside an operation": (data_flow, "_check_hidden"),
    "releases beside prints": (data_flow, "_check_branches"),
    "keys of releases": (data_flow, "_check_folds"),
    "numbers of the first rounds": (data_flow, "_check_counted"),
    "moments": (data_flow, "_MOMENTS"),
    "results of the host": (data_flow, "_calls_host"),
    # the module that looks rules up
    "rules of derivatives": (sys.modules[ad.JVPTrace.__module__], "primitive_jvps"),
    "a piece of a run": (record_isolation, "check_constants"),
}

N = 20
_PROBLEM = jmm.Problem(lambda z, x: Saddle(jnp.tanh(z.w) + x[0], z.v + x[1]))
_START, _DATA = Saddle(jnp.zeros(2), jnp.zeros(2)), (jnp.ones((N, 2)), jnp.zeros((N, 2)))
_QUERY = Query(clip=Saddle(1.0, 1.0), population=N, noise_multiplier=Saddle(5.0, 5.0))
_HYPER = jmm.sgda.Hyper(query=_QUERY, step=Saddle(0.1, 0.1), iterations=4)


# --- rounds that leak, and the detectors ---


def _described(hyper: Any) -> Repeat:
    return Repeat(query=hyper.query, times=hyper.iterations)


def _algorithm(update: Callable[..., Any]) -> Any:
    return types.SimpleNamespace(__name__="leak", Hyper=jmm.sgda.Hyper, State=descent.State,
                                 init=jmm.sgda.init, mechanism=_described, update=update)


def let_through(*rounds: Callable[..., Any]) -> Finding:
    """Rounds that are not refused; none may be."""
    through = 0
    for update in rounds:
        try:  # traced anew in every call
            jax.eval_shape(lambda key, state, data, update=update: jmm.round(
                key, state, data, _HYPER, _algorithm(update), _PROBLEM),
                jax.random.key(1), jmm.sgda.init(_START, _HYPER), _DATA)
            through += 1
        except ValueError:
            pass
    return Finding(float(through), 0.0)


def _leak(of: Callable[..., Any]) -> Callable[..., Any]:
    """A round of a function `(release, key, state, data) -> (g, number)`.

    Its `release(z, number, key, data)` has what the round gets where nothing is given.
    """
    def update(key: jax.Array, state: Any, data: Any, hyper: Any, problem: Any) -> Any:
        def release(z: Any = None, number: Any = None, own: Any = None, rows: Any = None) -> Any:
            return jmm.release(key if own is None else own, _described(hyper),
                               state.spent if number is None else number, problem,
                               state.z if z is None else z, data if rows is None else rows)

        g, more = of(release, key, state, data)
        z = jax.tree.map(lambda a, b: a - 0.1 * (b + more), state.z, g)
        return state._replace(z=z, spent=state.spent + 1)

    return update


def _besides(number: Callable[..., Any]) -> Callable[..., Any]:
    """A round whose step has a number of `(key, state, data)` added."""
    return _leak(lambda release, *rest: (release(), number(*rest)))


def _near(state: Any, t: Any = 1.0) -> Saddle:
    return jax.tree.map(lambda x: x + 0.1 * t, state.z)


def _chain(_: Any, state: Any, data: Any) -> Any:
    """Rows reach one carry in the first iteration, and the next one in the second."""
    zero = jnp.zeros(())
    return jax.lax.fori_loop(0, 4, lambda t, c: (c[1], c[2], data[0][0, 0]), (zero,) * 3)[0]


def _in_while(release: Any, key: Any, state: Any, data: Any) -> Any:
    """A number that stays in a loop whose length is not known."""
    return jax.lax.while_loop(lambda c: c[0] < state.spent % 2 + 2, lambda c: (
        c[0] + 1, release(_near(state, c[0]))), (0, state.z))[1], 0.0


def _derivative(release: Any, key: Any, state: Any, data: Any) -> Any:
    return jax.jvp(release, (state.z,), (state.z,))[1], 0.0


def _host(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _in_solve(_: Any, state: Any, data: Any) -> Any:
    """A record at the host, in a program inside an operation whose result nobody uses."""
    jax.lax.custom_linear_solve(lambda x: x, data[0][0], lambda _, b: _host(b), symmetric=True)
    return 0.0


def _told(release: Any, key: Any, state: Any, data: Any) -> Any:
    """Two points that the host tells one program."""
    program = jax.jit(lambda z: release(jax.tree.map(_host, z)))
    return jax.tree.map(jnp.subtract, program(state.z), program(state.z)), 0.0


def _printed(release: Any, key: Any, state: Any, data: Any) -> Any:
    def branch(t: float) -> Any:
        def made() -> Any:
            g = release(_near(state, t))
            jax.debug.print("{}", g.w)
            return g
        return made

    return jax.lax.cond(state.z.w.sum() > 0, branch(0.0), branch(1.0)), 0.0


def _each_record(release: Any, key: Any, state: Any, data: Any) -> Any:
    """A release for each column of the data, as if each were all of them."""
    columns: Any = jax.vmap(lambda *rows: release(rows=rows), in_axes=-1, out_axes=-1)
    return jax.tree.map(lambda x: x[..., 0], columns(*data)), 0.0


def _noise_again(key: Any, state: Any, data: Any) -> Any:
    for number in (jnp.uint32(2**31) + state.spent.astype(jnp.uint32), 1, 0):
        key = jax.random.fold_in(key, number)
    return jax.random.normal(key)


def _overlapping(release: Any, key: Any, state: Any, data: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda t, g: release(
        _near(state, t), number=state.spent + t), state.z), 0.0


def closing_over_rows() -> Finding:
    """Runs by `fit`, of one, of a round that closes over rows too few to tell by their shape."""
    rows = (jnp.ones((N // 2, 2)), jnp.zeros((N // 2, 2)))
    query = dataclasses.replace(_QUERY, population=N // 2)
    update = _besides(lambda *_: rows[0][3, 0])
    try:
        jmm.fit(jax.random.key(1), _START, rows, dataclasses.replace(_HYPER, query=query),
                _algorithm(update), _PROBLEM, delta=1e-3, progress=False)
    except ValueError:
        return Finding(0.0, 0.0)
    return Finding(1.0, 0.0)


# --- the plants ---


def _released(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """Changes what the check sees of a release: `(operation, operands, where)`."""
    def plant(release: Any) -> Any:
        def changed(self: data_flow._Flow, e: Any, values: list[Value], where: Any) -> Any:
            seen = types.SimpleNamespace(params=e.params, outvars=e.outvars,
                                         source_info=e.source_info)
            operands, where = change(seen, e.params["operands"].split(values), where)
            return release(self, seen, [x for each in operands for x in each], where)

        return changed

    return plant


def _without(values: list[Value], kinds: Any, label: Any = None) -> list[Value]:
    return [x._replace(label=label) if isinstance(x.label, kinds) else x for x in values]


def operands_unchecked(e: Any, operands: Any, where: Any) -> Any:
    return operands._replace(rest=_without(operands.rest, Rows | Read)), where


def rows_anywhere(e: Any, operands: Any, where: Any) -> Any:
    data = [x._replace(label=x.label._replace(number=k)) if isinstance(x.label, Rows) else x
            for k, x in enumerate(operands.data)]
    return operands._replace(rest=_without(operands.rest, Rows), data=data), where


def any_key(e: Any, operands: Any, where: Any) -> Any:
    return operands._replace(key=[x._replace(label=Key()) for x in operands.key]), where


def under_anything(e: Any, operands: Any, where: Any) -> Any:
    return operands, where._replace(under=None)


def mapped_rows(e: Any, operands: Any, where: Any) -> Any:
    e.params = e.params | {"mapped": False}
    return operands, where


def predicate_dropped(joined: Any) -> Any:
    return lambda values, e, origin: joined([values[0]._replace(label=None), *values[1:]], e,
                                            origin)


def one_pass(carried: Any) -> Any:
    passed = set()

    def changed(old: Value, new: Value, e: Any) -> Value:
        again = old.origin in passed
        passed.add(old.origin)
        return old if again else carried(old, new, e)

    return changed


def key_clean(read: Any) -> Any:
    return lambda label, e: None if isinstance(label, Key) else read(label, e)


def not_walked(check: Any) -> Any:
    return lambda e, label: check(types.SimpleNamespace(
        primitive=e.primitive, params={}, effects=e.effects, source_info=e.source_info), label)


def with_derivatives(rules: Any) -> Any:
    """A release has its derivative with it."""
    def rule(values: Any, tangents: Any, *, program: Any, operands: Any, **how: Any) -> Any:
        tangents = list(map(ad.instantiate_zeros, tangents))
        moving = [k for k, x in enumerate(tangents) if jnp.issubdtype(x.dtype, jnp.inexact)]

        def both(*each: Any) -> Any:
            moves, values = each[:len(moving)], list(each[len(moving):])

            def of(*some: Any) -> Any:
                for k, x in zip(moving, some, strict=True):
                    values[k] = x
                return release_operation._evaluated(*values, program=program)

            value, change = jax.jvp(of, tuple(values[k] for k in moving), moves)
            return [*value, *change]

        given = [tangents[k] for k in moving]
        made = jax.make_jaxpr(both)(*given, *values)
        results = release_operation.private_release().bind(
            *made.consts, *given, *values, program=made.jaxpr, **how,
            operands=operands._replace(rest=len(made.consts) + len(given) + operands.rest))
        return results[:len(results) // 2], results[len(results) // 2:]

    return {**rules, release_operation.private_release(): rule}


def _nothing(_: Any) -> Any:
    return lambda *args, **how: None


def _no_keys(_: Any) -> Any:
    return lambda *args: set[Any]()


_POINT = functools.partial(let_through, _leak(lambda release, key, state, data: (
    release(jax.tree.map(lambda x: x + data[0].mean(), state.z)), 0.0)))
_ORDER = functools.partial(let_through, _leak(lambda release, key, state, data: (
    release(rows=data[::-1]), 0.0)))
_OTHER_KEY = functools.partial(let_through, _leak(lambda release, key, state, data: (
    release(own=jax.random.key(0)), 0.0)))
_PREDICATE = functools.partial(let_through, _besides(lambda key, state, data: jax.lax.cond(
    data[0].mean() > 0, lambda: 1.0, lambda: 0.0)))
_UNDER = functools.partial(let_through, _leak(lambda release, key, state, data: (
    # the other one is of a number of its own
    (release(), jax.lax.cond(data[0].mean() > 0, lambda: release(number=state.spent + 4),
                             lambda: state.z))[0], 0.0)))
_STACKED = functools.partial(let_through, _besides(lambda key, state, data: jax.lax.scan(
    lambda c, x: (c, x.sum()), 0.0, data[0])[1][3]))
_KEY = functools.partial(let_through, _besides(
    lambda key, state, data: jax.random.key_data(key)[0] * 1e-9))
_COUNTED = functools.partial(let_through, _leak(lambda release, key, state, data: (
    release(number=state.spent // 2), 0.0)))
_ROUNDS = "rounds that are let through"

# name, what it breaks, what is replaced and by what, detector, and what its number is
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("points of releases unchecked", "adaptivity: the point", "release in a round",
     _released(operands_unchecked), _POINT, _ROUNDS),
    ("rows accepted as any leaf", "a record is a row of each leaf", "release in a round",
     _released(rows_anywhere), _ORDER, _ROUNDS),
    ("releases under any key", "secrecy of the key", "release in a round", _released(any_key),
     _OTHER_KEY, _ROUNDS),
    ("predicate not joined", "post-processing: decisions", "results of a condition",
     predicate_dropped, _PREDICATE, _ROUNDS),
    ("one pass over a loop", "post-processing: loops", "carries of a loop", one_pass,
     functools.partial(let_through, _besides(_chain)), _ROUNDS),
    ("derivatives of releases", "noise: a derivative has none", "rules of derivatives",
     with_derivatives, functools.partial(let_through, _leak(_derivative)), _ROUNDS),
    ("releases under a raw predicate", "adaptivity: whether it is made", "release in a round",
     _released(under_anything), _UNDER, _ROUNDS),
    ("key as clean", "secrecy of the key", "what is read", key_clean, _KEY, _ROUNDS),
    ("slices of a scan as clean", "post-processing: loops", "slices of a scan", _nothing, _STACKED,
     _ROUNDS),
    ("programs inside operations not walked", "post-processing: effects",
     "programs inside an operation", not_walked,
     functools.partial(let_through, _besides(_in_solve)), _ROUNDS),
    ("rows that are mapped over", "a record is read once", "release in a round",
     _released(mapped_rows), functools.partial(let_through, _leak(_each_record)), _ROUNDS),
    ("prints beside releases in branches", "one noise twice: lanes run all branches",
     "releases beside prints", _nothing, functools.partial(let_through, _leak(_printed)), _ROUNDS),
    ("keys of releases derived again", "independence of draws and noise", "keys of releases",
     _nothing, functools.partial(let_through, _besides(_noise_again)), _ROUNDS),
    ("numbers of loops unchecked", "one noise twice: loops", "numbers of the first rounds",
     _no_keys, functools.partial(let_through, _leak(_in_while)), _ROUNDS),
    ("numbers of rounds unchecked", "one noise twice: rounds", "numbers of the first rounds",
     _no_keys, _COUNTED, _ROUNDS),
    ("first iterations alone compared", "one noise twice: iterations", "moments", lambda _: 1,
     functools.partial(let_through, _leak(_overlapping)), _ROUNDS),
    ("results of the host as equal", "one noise twice: the host", "results of the host",
     lambda _: lambda e: False, functools.partial(let_through, _leak(_told)), _ROUNDS),
    ("rows that fit's round closes over", "what a program closes over", "a piece of a run",
     _nothing, closing_over_rows, "runs that are let through"),
)
