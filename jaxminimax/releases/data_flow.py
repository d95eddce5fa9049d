"""Checks that a round reads data through its releases only, by its traced program.

What an accountant charges are the releases of a round. That nothing else of the rows leaves it is
decided here, from the program of `update`, before anything runs. Every value of the program gets a
label, joined upwards,

    clean  <  key (the run's, and keys derived from it)  <  rows j (leaf j of the data, as it was
    handed over)  <  read (computed from a leaf of the data, or from the words of a key),

and the loops whose iterations it may differ in. Refused are

* a result of the round, an effect (a print, a callback, a write to a `Ref`), or a decision whether
  to make a release or an effect, that is not clean;
* a release whose point, number, settings or closures are neither clean nor a key, whose leaf j of
  the data is not rows j, or whose key is not derived from the run's;
* a derivative through a release, a release inside an operation with a program of its own, a `vmap`
  over the data's axes or over points alone;
* a release in a loop, or in every round, whose key and number are the same in all of them.

**Theorem.** Let R_1, ..., R_k be the releases of a round that is not refused. Its state, its
effects, and the operands of each R_j but its data, are a function of key, state, settings, public
constants and the outputs of R_1, ..., R_k alone. *Proof.* Fix all these but the outputs, and take
data D, D' of equal shapes. By induction over operations, inside calls and loops too: a value that
is clean or a key is equal in both executions if all earlier releases had equal outputs. A pure
operation is a function of its operands. Of a conditional, results are clean only if the predicate
is, so that both executions take one branch. Of a loop, the set of clean carries is closed under its
body, and reads no others; if its predicate is not clean, the set is empty. Memory that nobody wrote
is no operand, so kernels that may read it are refused. A release has equal operands but its data,
and is made in both executions or in neither. Effects have clean operands under clean predicates, in
programs inside operations too. QED.

If `init`, `observe`, the starting point and what functions close over do not depend on the data,
then by induction over rounds the transcript is the adaptive composition of the releases, and post-
processing. That no two releases have one key and number is decided as far as a program shows it.
Numbers that are computed of the releases made before are compared in the first 16 rounds; one that
depends on a loop in another way may still repeat, which `check` counts while rounds run. What
Python reads before a round or between rounds, and the inside of a release, no program of a round
shows.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import programs
from jaxminimax.base.types import PyTree

_LIBRARIES = (str(pathlib.Path(jax.__file__).parent), str(pathlib.Path(__file__).parents[1]),
              "<frozen")
# operations that run the program in their parameters once, with their operands
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint",
          "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "call")
_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
ROUNDS = "rounds"  # the loop over rounds that a driver makes
_ROUNDS = 16  # whose numbers are computed
_AGAIN = ("so with one noise, and their difference has none: count on between them, derive a key "
          "for each by jax.random.fold_in, or describe each in a part of its own of a Sequence.")


class Rows(NamedTuple):
    """Leaf `number` of the data, as it was handed over."""

    number: int
    name: str


class Read(NamedTuple):
    """Computed from `name`, first by `operation` at `line`."""

    name: str
    operation: str
    line: str


class Key(NamedTuple):
    """The run's key, or one derived from it: draws and releases tell nothing of it."""

    name: str = "the run's key"


Label = Rows | Read | Key | None
Counted = Callable[[np.ndarray], np.ndarray]  # of releases made before, in several rounds


class Value(NamedTuple):
    """A value of a program, as far as it is known.

    Attributes:
      label: what of the data or of the key it holds; None if it is clean.
      varies: the loops in whose iterations it may differ.
      origin: a number of how it is computed; equal ones are of equal values.
      counted: its value as a function of the releases made before, where that is all it depends on.
    """

    label: Label = None
    varies: frozenset[Any] = frozenset()
    origin: Any = None
    counted: Counted | None = None


class _Release(NamedTuple):
    """A release of the round.

    Attributes:
      stream: of its keys: kind and place of its description.
      key: its key.
      number: its number.
      decided: the loops in which predicates that decide whether it is made may differ.
      occurs: whether it is made, as a function of the releases before it; None if not known.
      loops: the loops that it is in, outer ones first.
      branches: numbers of the branches that it is in, by their conditional.
      operands: origins of all that it gets.
      line: of the user's program.
    """

    stream: tuple[int, int]
    key: Value
    number: Value
    decided: frozenset[Any]
    occurs: Counted | None
    loops: tuple[Any, ...]
    branches: dict[Any, int]
    operands: tuple[Any, ...]
    line: str


def check(program: Any, data: PyTree, state: PyTree, results: PyTree, rounds: int | None) -> None:
    """Refuses a round that reads data past its releases, or releases twice with one noise.

    Args:
      program: its closed jaxpr, a function of the key and the leaves of `state` and `data`, in this
        order, of which the first results are those of `results`.
      data: the rows; arrays that the program closes over are compared with these.
      state: the state that the round gets.
      results: the state that it returns.
      rounds: how many follow each other; None if that is a traced number.

    Raises:
      ValueError: naming the leaf of the state, the leaf of the data, the operation and the line.
    """
    names = [f"data{jax.tree_util.keystr(path)}" for path, _ in
             jax.tree_util.tree_leaves_with_path(data)]
    leaves, before = jax.tree.leaves(data), len(jax.tree.leaves(state))
    flow = _Flow({id(x): Read(f"{name}, closed over by update", "closure", "the round's function")
                  for name, x in zip(names, leaves, strict=True)})
    jaxpr = program.jaxpr
    paths = [jax.tree_util.keystr(path) for path, _ in
             jax.tree_util.tree_leaves_with_path(results)]
    arguments = [Value(Key(), origin="key")]
    for k, (x, y) in enumerate(zip(jaxpr.invars[1: 1 + before], jaxpr.outvars, strict=False)):
        # a leaf of the state that every round hands on as it is says nothing about the round
        arguments.append(Value(None, frozenset() if x is y else frozenset([ROUNDS]), ("state", k),
                               (lambda t: t) if paths[k] == ".spent" else None))
    arguments += [Value(Rows(k, name), origin=name) for k, name in enumerate(names)]
    outs = flow.run(jaxpr, [flow.constant(x) for x in program.consts], arguments, _Where())
    for path, value in zip(paths, outs, strict=False):
        if value.label is not None:
            raise ValueError(f"update returns data past a release: state{path} is "
                             f"{_text(value.label)}. Only what a release function returns is "
                             "private: release it, or compute it from what is released.")
    _check_loops(flow.releases, rounds)
    after = outs[paths.index(".spent")].counted if ".spent" in paths else None
    if after is not None:
        _check_counted(flow.releases, after, _ROUNDS if rounds is None else min(rounds, _ROUNDS))


class _Where(NamedTuple):
    """Where in a program an operation stands.

    Attributes:
      under: the label of a predicate that decides whether it runs, if that is not clean.
      decided: the loops in which such predicates may differ.
      loops: the loops that it is in.
      branches: as of a `_Release`.
      occurs: as of a `_Release`.
      path: the operations whose programs it is in; a program may be a part of several.
    """

    under: Label = None
    decided: frozenset[Any] = frozenset()
    loops: tuple[Any, ...] = ()
    branches: dict[Any, int] = {}  # noqa: RUF012
    occurs: Counted | None = lambda t: np.ones(t.shape, bool)
    path: tuple[int, ...] = ()

    def inside(self, e: Any, **how: Any) -> "_Where":
        """Where the program of an operation stands."""
        return self._replace(path=(*self.path, id(e)), **how)


class _Flow:
    """Follows values through a program."""

    def __init__(self, rows: dict[int, Read]) -> None:
        self.rows = rows  # labels of the data's own arrays, where something closes over them
        self.releases: list[_Release] = []
        self.origins: dict[Any, int] = {}

    def constant(self, x: Any) -> Value:
        """An array or a number that the program closes over."""
        number = x.item() if isinstance(x, np.generic | np.ndarray) and not x.shape else x
        if not isinstance(number, int | float):
            return Value(self.rows.get(id(x)), origin=("array", id(x)))
        return Value(origin=number, counted=lambda t: np.full(t.shape, number))

    def run(self, jaxpr: Any, constants: Sequence[Value], arguments: Sequence[Value],
            where: _Where) -> list[Value]:
        values_of = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(
            zip(jaxpr.invars, arguments, strict=True))

        def value(x: Any) -> Value:
            return self.constant(x.val) if hasattr(x, "val") else values_of[x]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [value(x) for x in equation.invars], where)
            values_of.update(zip(equation.outvars, results, strict=True))
        return [value(x) for x in jaxpr.outvars]

    def inner(self, program: Any, values: Sequence[Value], where: _Where) -> list[Value]:
        jaxpr = getattr(program, "jaxpr", program)
        return self.run(jaxpr, [self.constant(x) for x in getattr(program, "consts", ())], values,
                        where)

    def equation(self, e: Any, values: list[Value], where: _Where) -> list[Value]:
        name, params = e.primitive.name, e.params
        if name == "private_release":
            return self.release(e, values, where)
        if name in _CALLS:
            program = next((params[x] for x in _PROGRAMS if x in params), None)
            inputs = getattr(program, "jaxpr", program).invars if program else ()
            if len(inputs) == len(values):
                return self.inner(program, values, where.inside(e))
        control = {"cond": self.cond, "while": self.loop, "scan": self.scan}.get(name)
        if control is not None:
            return control(e, values, where)
        if name != "public_key":
            _check_hidden(e, _join([x.label for x in values], None) or where.under)
        label, varies = self.label(e, values), frozenset().union(*(x.varies for x in values))
        how = (name, *((x, _hashable(y)) for x, y in params.items()), *(x.origin for x in values))
        origin = self.origins.setdefault(how, len(self.origins))
        return [Value(label, varies, ("computed", origin, k), _counted(e, values))
                for k in range(len(e.outvars))]

    def label(self, e: Any, values: list[Value]) -> Label:
        """The label of the results of an operation without a program inside."""
        label = _join([x.label for x in values], None)
        if isinstance(label, Key):
            if e.primitive.name == "random_bits":
                return None  # a draw
            if all(jnp.issubdtype(x.aval.dtype, jax.dtypes.prng_key) for x in e.outvars):
                return label
        return _read(label, e)

    def release(self, e: Any, values: list[Value], where: _Where) -> list[Value]:
        operands, line = e.params["operands"].split(values), _line(e)
        if where.under is not None:
            raise ValueError(f"update decides by what is {_text(where.under)} whether it makes a "
                             f"release ({line}).")
        for value in (*operands.rest, *operands.key, *operands.number, *operands.settings):
            if isinstance(value.label, Rows | Read):
                raise ValueError(
                    f"A release ({line}) gets what is {_text(value.label)}, elsewhere than as its "
                    "data: its key, its point, its settings and what its problem closes over may "
                    "depend on what was released only.")
        for leaf, value in enumerate(operands.data):
            if not isinstance(value.label, Rows) or value.label.number != leaf or (
                    e.params["mapped"]):
                what = ("mapped over by vmap" if e.params["mapped"] else
                        "not of the round's data" if value.label is None else _text(value.label))
                raise ValueError(f"A release ({line}) gets rows that are {what}, as leaf {leaf}: "
                                 "hand it the data as update gets them, whole and in order, and "
                                 "change a record in the operator.")
        if not all(isinstance(x.label, Key) for x in operands.key) or not operands.key:
            raise ValueError(f"A release ({line}) has a key that is not derived from the run's: "
                             "its noise may be drawn again by others. Hand it the key that update "
                             "gets.")
        key = operands.key[0]
        number = operands.number[0] if operands.number else self.constant(e.params["number"])
        self.releases.append(_Release(
            e.params["stream"], key, number, where.decided, where.occurs, where.loops,
            where.branches, tuple(x.origin for x in values), line))
        varies = frozenset().union(*(x.varies for x in values), where.decided)
        return [Value(None, varies, (id(x), where.path)) for x in e.outvars]

    def cond(self, e: Any, values: list[Value], where: _Where) -> list[Value]:
        which, *rest = values
        branches = []
        for number, program in enumerate(e.params["branches"]):
            here = where.inside(e, under=where.under or _read(which.label, e),
                                decided=where.decided | which.varies,
                                occurs=_both(where.occurs, which.counted, number),
                                branches=where.branches | {(id(e), where.path): number})
            branches.append(self.inner(program, rest, here))
        return [_joined([which, *each], e, (id(x), where.path)) for x, each in zip(
            e.outvars, zip(*branches, strict=True), strict=True)]

    def loop(self, e: Any, values: list[Value], where: _Where) -> list[Value]:
        p, token = e.params, (id(e), where.path)
        first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        for_cond, for_body, carry = values[:first], values[first:second], values[second:]
        body, mark = p["body_jaxpr"], len(self.releases)
        carry = _moving(token, carry, body.jaxpr.invars[second - first:], body.jaxpr.outvars)
        where, goes_on = where.inside(e, loops=(*where.loops, token), occurs=None), Value()
        while True:
            del self.releases[mark:]  # of a pass with labels that were too low
            here = where._replace(under=where.under or _read(goes_on.label, e))
            (new,) = self.inner(p["cond_jaxpr"], for_cond + carry, here)
            here = where._replace(under=where.under or _read(new.label, e))
            outs = self.inner(body, for_body + carry, here)
            after = [_carried(old, x, e) if new.label is None else
                     _joined([new, old, x], e, old.origin)
                     for old, x in zip(carry, outs, strict=True)]
            if (after, new) == (carry, goes_on):
                return _left(token, carry)
            carry, goes_on = after, new

    def scan(self, e: Any, values: list[Value], where: _Where) -> list[Value]:
        p, token = e.params, (id(e), where.path)
        first, second = p["num_consts"], p["num_consts"] + p["num_carry"]
        constants, carry = values[:first], values[first:second]
        slices = [Value(_sliced(x.label, e), x.varies | {token}, (token, "slice", k))
                  for k, x in enumerate(values[second:])]
        body, mark = p["jaxpr"], len(self.releases)
        carry = _moving(token, carry, body.jaxpr.invars[first:second], body.jaxpr.outvars)
        here = where.inside(e, loops=(*where.loops, token), occurs=None)
        while True:
            del self.releases[mark:]
            outs = self.inner(body, constants + carry + slices, here)
            after = [_carried(old, x, e) for old, x in zip(carry, outs[:len(carry)], strict=True)]
            if after == carry:
                stacked = [Value(_sliced(x.label, e), x.varies | {token})
                           for x in outs[len(carry):]]
                return _left(token, carry + stacked)
            carry = after


def _moving(token: Any, carry: list[Value], arguments: Sequence[Any],
            results: Sequence[Any]) -> list[Value]:
    """The carries of a loop; those that its body changes differ from iteration to iteration."""
    return [x if before is after else Value(x.label, x.varies | {token}, (token, "carry", k))
            for k, (x, before, after) in enumerate(zip(carry, arguments, results, strict=False))]


def _carried(old: Value, new: Value, e: Any) -> Value:
    """A carry after one more iteration; a leaf that is only carried along stays what it is."""
    if old.label == new.label or (old.label is None and isinstance(new.label, Key)):
        label = new.label
    else:
        label = _join([_read(old.label, e), _read(new.label, e)], None)
    return Value(label, old.varies | new.varies, old.origin,
                 old.counted if old.origin == new.origin else None)


def _left(token: Any, values: list[Value]) -> list[Value]:
    """The results of a loop."""
    return [Value(x.label, x.varies, (token, "result", k) if token in x.varies else x.origin)
            for k, x in enumerate(values)]


def _joined(values: Sequence[Value], e: Any, origin: Any) -> Value:
    """A value that is one of several."""
    labels = {x.label for x in values[1:]}
    same = values[0].label is None and len(labels) == 1
    label = labels.pop() if same else _join([x.label for x in values], e)
    return Value(label, frozenset().union(*(x.varies for x in values)), origin)


def _join(labels: Sequence[Label], e: Any) -> Label:
    """The highest label; the first one of these, for messages. Where `e` chooses, rows are read."""
    highest = next((x for kind in (Read, Rows, Key) for x in labels if isinstance(x, kind)), None)
    keys = isinstance(highest, Key) and all(x is None or isinstance(x, Key) for x in labels)
    return highest if e is None or keys else _read(highest, e)


def _read(label: Label, e: Any) -> Label:
    return Read(label.name, e.primitive.name, _line(e)) if isinstance(label, Rows | Key) else label


def _sliced(label: Label, e: Any) -> Label:
    """The label of slices: keys of several are keys, rows of a leaf are read."""
    return label if isinstance(label, Key) else _read(label, e)


def _text(label: Any) -> str:
    if isinstance(label, Read):
        return f"computed from {label.name} ({label.operation}, {label.line})"
    return f"{label.name} itself"


def _line(e: Any) -> str:
    """The innermost line outside of JAX and of the library that made an operation."""
    frames = getattr(e.source_info.traceback, "frames", ())
    theirs = [x for x in frames if not x.file_name.startswith(_LIBRARIES)]
    return f"{pathlib.Path(theirs[0].file_name).name}:{theirs[0].line_num}" if theirs else "?"


def _check_hidden(e: Any, label: Label) -> None:
    """Refuses an operation that hands out what is not clean, or hides a release; see the module."""
    name = e.primitive.name
    inside = programs.equations(list(e.params.values()))
    if any(x.primitive.name == "private_release" for x in inside):
        raise ValueError(f"update makes a release inside {name} ({_line(e)}), of rows that are not "
                         "the data's own there: hand the data to a release outside of it.")
    unwritten = {"pallas_call", "empty"} & {x.primitive.name for x in (e, *inside)}
    if unwritten:
        raise ValueError(f"update calls {unwritten.pop()} outside of a release ({_line(e)}), which "
                         "may read memory that nobody wrote: compute it by jax.numpy, or inside "
                         "the operator.")
    for x in (e, *inside):
        if label is not None and (x.effects or "callback" in x.primitive.name
                                  or x.primitive.name.startswith(("ffi", "custom_vmap"))):
            raise ValueError(f"update tells the host, or writes to, what is {_text(label)}: "
                             f"{x.primitive.name}, {_line(e)}. Only what a release function "
                             "returns is private.")


def _check_loops(releases: list[_Release], rounds: int | None) -> None:
    """Refuses releases whose key and number are the same in all iterations, or begin anew."""
    for place, one in enumerate(releases):
        changes = one.key.varies | one.number.varies | one.decided
        for loop in (*([] if rounds == 1 else [ROUNDS]), *one.loops):
            if loop not in changes:
                what = "every round" if loop is ROUNDS else "every iteration of a loop"
                raise ValueError(f"update makes a release ({one.line}) with the same key and "
                                 f"number in {what}, so with one noise: the difference of two has "
                                 "none. Count on: number it by state.spent, and by the loop's "
                                 "counter.")
        for other in releases[:place]:
            exclusive = any(other.branches.get(e, branch) != branch
                            for e, branch in one.branches.items())
            # the same release, computed again for a derivative, is no second one
            if exclusive or one.operands == other.operands or (
                    (one.stream, one.key.origin) != (other.stream, other.key.origin)):
                continue
            # both count anew in loops of their own, as two runs inside a round do
            anew = one.loops != other.loops and one.number.varies <= set(one.loops) and (
                other.number.varies <= set(other.loops))
            if anew or one.number.origin == other.number.origin:
                raise ValueError(f"update makes two releases ({other.line}, {one.line}) of one "
                                 f"description under one key, {_AGAIN}")


def _check_counted(releases: list[_Release], after: Counted, rounds: int) -> None:
    """Refuses two releases of the first rounds that have one key and one number.

    Args:
      releases: of a round.
      after: the releases made after a round, by those made before.
      rounds: that are looked at.
    """
    each = after(np.zeros(1, int))[0]
    before, met = each * np.arange(rounds), dict[Any, Any]()
    if not np.array_equal(after(before), before + each):
        return
    for one in releases:
        if one.occurs is None or one.number.counted is None or ROUNDS in one.key.varies:
            continue
        for t, number, occurs in zip(range(rounds), one.number.counted(before), one.occurs(before),
                                   strict=True):
            use = (one.stream, one.key.origin, int(number))
            if occurs and met.setdefault(use, (t, one.operands)) != (t, one.operands):
                raise ValueError(f"update makes two releases number {number} of one description "
                                 f"under one key, in rounds {met[use][0]} and {t} ({one.line}), "
                                 f"{_AGAIN}")


# --- numbers that are computed of the releases made before ---


def _both(occurs: Counted | None, which: Counted | None, branch: int) -> Counted | None:
    """The condition for a release in a branch."""
    if occurs is None or which is None:
        return None
    return lambda t: occurs(t) & (which(t) == branch)


def _divided(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.trunc(np.true_divide(x, y)).astype(int)


_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divided, "rem": np.fmod,
    "max": np.maximum, "min": np.minimum, "neg": np.negative, "sign": np.sign, "eq": np.equal,
    "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "not": np.logical_not,
    "select_n": lambda which, *cases: np.choose(which.astype(int), cases),
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "convert_element_type": lambda x: x}


def _counted(e: Any, values: list[Value]) -> Counted | None:
    """The result of an operation on whole numbers that releases made before decide, if so."""
    does, inputs = _ARITHMETIC.get(e.primitive.name), [x.counted for x in values]
    if does is None or None in inputs or e.outvars[0].aval.shape or jnp.issubdtype(
            e.outvars[0].aval.dtype, jnp.inexact):
        return None
    return lambda t: does(*(x(t) for x in inputs))  # type: ignore[misc]


def _hashable(x: Any) -> Any:
    try:
        hash(x)
    except TypeError:
        return id(x)
    return x
