"""Checks that a round reads data through its releases only, by its traced program.

What an accountant charges are the releases of a round. That nothing else of the rows leaves it is
decided here, from the program of `update`, before anything runs. Every value of the program gets a
label, joined upwards,

    clean  <  key (the run's, and keys derived from it)  <  rows j (leaf j of the data, as it was
    handed over)  <  read (computed from a leaf of the data, or from the words of a key).

Refused are

* a result of the round, an effect (a print, a callback, a write to a `Ref`), or a decision whether
  to make a release or an effect, that is not clean;
* a release whose point, number, settings or closures are not clean, whose leaf j of the data is not
  rows j, or whose key is not derived from the run's;
* a derivative through a release, a release inside an operation with a program of its own, a `vmap`
  over the data's axes or over points alone;
* two releases with one key and one number, more releases than are charged, and other settings.

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
Numbers and keys are computed of the counts in a state, integers that follow from round to round of
themselves alone, and of the iterations of scans; a release under others is refused. They are
compared, and counted against the charge, in the first 16 rounds and iterations, for counts that
begin at 0. Where something decides whether a round stays as it was, it is assumed to go on. Draws
under the key are independent of the noise, as releases fold in numbers from 2^31 on, which a round
may not; a number that is not known here, it may fold into other keys than those of releases only.
Under a `vmap` all branches run, so none may hold a release and an effect. What Python reads before
a round or between rounds, and the inside of a release, no program of a round shows.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import programs, tree
from jaxminimax.base.types import PyTree
from jaxminimax.mechanism import Parallel
from jaxminimax.releases import made_releases
from jaxminimax.releases.release_operation import Described

_ROUNDS = 16  # whose numbers are computed, and so many iterations of each loop inside
_MOMENTS = 32  # of one release in a round, at most


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
# of a moment: counts of the state before the round, and iterations of the loops, outer ones first
Counted = Callable[[tuple[Any, ...]], Any]


class Value(NamedTuple):
    """A value of a program, as far as it is known.

    Attributes:
      label: what of the data or of the key it holds; None if it is clean.
      origin: a number of how it is computed; equal ones are of equal values.
      counted: its value as a function of the moment, where that is all it depends on; of keys, if
        the run's key were another one.
    """

    label: Label = None
    origin: Any = None
    counted: Counted | None = None


class _Release(NamedTuple):
    """A release of the round.

    Attributes:
      described: its description.
      settings: the numbers of its description.
      key: its key.
      number: its number.
      occurs: whether it is made, as a function of the moment; None if not known.
      loops: the loops that it is in, outer ones first.
      branches: numbers of the branches that it is in, by their conditional.
      operands: origins of all that it gets.
      line: of the user's program.
    """

    described: Described
    settings: list[Value]
    key: Value
    number: Value
    occurs: Counted | None
    loops: tuple[Any, ...]
    branches: dict[Any, int]
    operands: tuple[Any, ...]
    line: str

    @property
    def stream(self) -> tuple[int, int]:
        """The stream of its keys."""
        return self.described.stream


def check(program: Any, key: jax.Array, data: PyTree, state: PyTree, results: PyTree,
          rounds: int | None, described: Any, numbered: bool = True) -> None:
    """Refuses a round that reads data past its releases, or releases twice with one noise.

    Args:
      program: its closed jaxpr, a function of the key and the leaves of `state` and `data`, in this
        order, of which the first results are those of `results`, and the last ones the numbers of
        `described`, part by part.
      key: the run's, of which the generator is read.
      data: the rows; arrays that the program closes over are compared with these.
      state: the state that the round gets.
      results: the state that it returns.
      rounds: how many follow each other; None if that is a traced number.
      described: the mechanism that is charged.
      numbered: False if the caller hands out each number once, as `private_gradient` does; numbers
        and keys are not looked at then.

    Raises:
      ValueError: naming the leaf of the state, the leaf of the data, the operation and the line.
    """
    names = tree.paths("data", data)
    leaves, count = jax.tree.leaves(data), len(jax.tree.leaves(state))
    rows: dict[Any, Read] = {
        id(x): Read(f"{name}, closed over by update", "closure", "the round's function")
        for name, x in zip(names, leaves, strict=True)}
    # numbers are not known here, so an array of a leaf's shape counts as the leaf
    lengths = {length for shape in (*map(jnp.shape, jax.tree.leaves(state)), *(
        jnp.shape(x)[1:] for x in leaves)) for length in shape}
    rows |= {x.shape: Read(f"an array of the shape of {name}, closed over by update",
                           "closure", "the round's function")
             for name, x in zip(names, leaves, strict=True)
             # shorter arrays may have a leaf's shape by chance
             if x.ndim and x.shape[0] >= 16 and x.shape[0] not in lengths}
    jaxpr, paths = program.jaxpr, tree.paths("", results)
    carried_leaves = list(zip(jaxpr.invars[1: 1 + count], jaxpr.outvars[:len(paths)], strict=False))
    counts = {k for k, (x, y) in enumerate(carried_leaves) if x is not y and not x.aval.shape
              and jnp.issubdtype(x.aval.dtype, jnp.integer)}
    while True:  # until each of them is computed of these alone, from round to round
        flow = _Flow(rows)
        arguments = [Value(Key(), origin="key",
                           counted=_another_key(str(jax.random.key_impl(key))))]
        arguments += [Value(None, ("state", k), _count(k, x.aval.dtype) if k in counts else None)
                      for k, (x, _) in enumerate(carried_leaves)]
        arguments += [Value(Rows(k, name), origin=name) for k, name in enumerate(names)]
        outs = flow.run(jaxpr, [flow.constant(x) for x in program.consts], arguments, _Site())
        next_counts: dict[int, Counted] = {k: x for k in counts if (
            x := outs[k].counted or flow.going_on.get(outs[k].origin)) is not None}
        if len(next_counts) == len(counts):
            break
        counts = set(next_counts)
    for path, value in zip(paths, outs, strict=False):
        if value.label is not None:
            raise ValueError(f"update returns data past a release: state{path} is "
                             f"{_text(value.label)}. Only what a release function returns is "
                             "private: release it, or compute it from what is released.")
    _check_apart(described)
    _check_settings(flow.releases, described, outs, rounds is not None)
    if not numbered:
        return
    states, counts_before = _states(next_counts, len(carried_leaves),
                                    _ROUNDS if rounds is None else max(rounds, 2))
    spent = paths.index(".spent") if ".spent" in paths and rounds is not None else None
    used = _check_counted(flow.releases, counts_before, states, described, spent)
    _check_folds(flow.folds, counts_before, used)


class _Site(NamedTuple):
    """Where in a program an operation stands.

    Attributes:
      under: the label of a predicate that decides whether it runs, if that is not clean.
      loops: the loops that it is in.
      branches: as of a `_Release`.
      occurs: as of a `_Release`.
      path: the operations whose programs it is in; a program may be a part of several.
    """

    under: Label = None
    loops: tuple[Any, ...] = ()
    branches: dict[Any, int] = {}  # noqa: RUF012
    occurs: Counted | None = lambda moment: True
    path: tuple[int, ...] = ()

    def inside(self, e: Any, **changes: Any) -> "_Site":
        """Where the program of an operation stands."""
        return self._replace(path=(*self.path, id(e)), **changes)


class _Flow:
    """Follows values through a program."""

    def __init__(self, rows: dict[Any, Read]) -> None:
        self.rows = rows  # labels of what may be rows that something closes over: by id, by shape
        self.releases: list[_Release] = []
        self.folds: list[tuple[Value, Value, tuple[Any, ...], str]] = []  # keys, and numbers
        self.going_on: dict[Any, Counted | None] = {}  # of what may stay a leaf of the state
        self.origins: dict[Any, int] = {}

    def constant(self, x: Any, dtype: Any = None) -> Value:
        """An array or a number that the program closes over."""
        number = x.item() if isinstance(x, np.generic | np.ndarray) and not x.shape else x
        if not isinstance(number, int | float):
            return Value(self.rows.get(id(x), self.rows.get(jnp.shape(x))), origin=("array", id(x)),
                         counted=None if programs.is_traced(x) else lambda moment: x)
        return Value(origin=number, counted=lambda moment: np.asarray(number, dtype))

    def run(self, jaxpr: Any, constants: Sequence[Value], arguments: Sequence[Value],
            site: _Site) -> list[Value]:
        values_of = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(
            zip(jaxpr.invars, arguments, strict=True))

        def value(x: Any) -> Value:
            return self.constant(x.val, x.aval.dtype) if hasattr(x, "val") else values_of[x]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [value(x) for x in equation.invars], site)
            values_of.update(zip(equation.outvars, results, strict=True))
        return [value(x) for x in jaxpr.outvars]

    def inner(self, program: Any, values: Sequence[Value], site: _Site) -> list[Value]:
        jaxpr = getattr(program, "jaxpr", program)
        return self.run(jaxpr, [self.constant(x) for x in getattr(program, "consts", ())], values,
                        site)

    def equation(self, e: Any, values: list[Value], site: _Site) -> list[Value]:
        name, params = e.primitive.name, e.params
        if name == "private_release":
            return self.release(e, values, site)
        program = programs.called(e)
        if program is not None:
            results = self.inner(program, values, site.inside(e))
            if not name.startswith("custom_"):
                return results
            # a rule for derivatives, of anyone who derives the round, may read all operands
            label = self.label(e, values)
            return [x if label is None else x._replace(label=label) for x in results]
        control = {"cond": self.cond, "while": self.loop, "scan": self.scan}.get(name)
        counted = _counted(e, values)
        if control is not None:
            if name != "scan":
                _check_branches(e)
            return [x._replace(counted=x.counted or computed) for x, computed in zip(
                control(e, values, site), counted, strict=True)]
        if name != "public_key":
            _check_hidden(e, _join([x.label for x in values], None) or site.under)
        if name in ("random_fold_in", "random_split") and isinstance(values[0].label, Key):
            number = values[-1] if name == "random_fold_in" else self.constant(
                math.prod(params["shape"]) - 1)
            self.folds.append((values[0], number, site.loops, programs.line(e)))
        label = self.label(e, values)
        # of two calls of the host, or reads of what is written to, results may differ
        call_number = len(self.origins) if _calls_host(e) else None
        computation = (name, call_number, *((x, _hashable(y)) for x, y in params.items()),
               *(x.origin for x in values))
        origin = self.origins.setdefault(computation, len(self.origins))
        moving = [x for x in values[1:] if not str(x.origin).startswith("('state'")]
        if name == "select_n" and len(moving) == 1:
            self.going_on["computed", origin, 0] = moving[0].counted
        # operations whose results are their operands, one by one
        passed_on = ("stop_gradient", "optimization_barrier", "copy", "device_put",
                     "sharding_constraint")
        labels = [x.label for x in values] if name in passed_on else [label] * len(e.outvars)
        return [Value(x, ("computed", origin, k), computed)
                for k, (x, computed) in enumerate(zip(labels, counted, strict=True))]

    def label(self, e: Any, values: list[Value]) -> Label:
        """The label of the results of an operation without a program inside."""
        label = _join([x.label for x in values], None)
        if isinstance(label, Key):
            if e.primitive.name in ("random_bits", "random_gamma"):
                return None  # a draw
            # but of a program inside that is not the library's, where a key may be folded unseen
            plain = e.primitive.name == "public_key" or not programs.equations(
                list(e.params.values()))
            if plain and all(jnp.issubdtype(x.aval.dtype, jax.dtypes.prng_key)
                             for x in e.outvars):
                return label
        return _read(label, e)

    def release(self, e: Any, values: list[Value], site: _Site) -> list[Value]:
        operands, line = e.params["operands"].split(values), programs.line(e)
        if site.under is not None:
            raise ValueError(f"update decides by what is {_text(site.under)} whether it makes a "
                             f"release ({line}).")
        inputs = (*operands.rest, *operands.number, *operands.settings)
        # draws under a key that an operator closes over could be those of the noise
        for value in (*(x for x in inputs if x.label is not None), *operands.key):
            if value in inputs or isinstance(value.label, Rows | Read):
                raise ValueError(
                    f"A release ({line}) gets what is {_text(value.label)}, elsewhere than as its "
                    "data: its key, its point, its settings and what its problem closes over may "
                    "depend on what was released only.")
        for place, value in enumerate(operands.data):
            if not isinstance(value.label, Rows) or value.label.number != place or (
                    e.params["mapped"]):
                text = ("mapped over by vmap" if e.params["mapped"] else
                        "not of the round's data" if value.label is None else _text(value.label))
                raise ValueError(f"A release ({line}) gets rows that are {text}, as leaf {place}: "
                                 "hand it the data as update gets them, whole and in order, and "
                                 "change a record in the operator.")
        if not all(isinstance(x.label, Key) for x in operands.key) or not operands.key:
            raise ValueError(f"A release ({line}) has a key that is not derived from the run's: "
                             "its noise may be drawn again by others. Hand it the key that update "
                             "gets.")
        key = operands.key[0]
        number = operands.number[0] if operands.number else self.constant(e.params["number"])
        traced = iter(operands.settings)
        settings = [next(traced) if x is None else self.constant(x)
                    for x in e.params["described"].numbers]
        self.releases.append(_Release(
            e.params["described"], settings, key, number, site.occurs, site.loops,
            site.branches, tuple(x.origin for x in values), line))
        return [Value(None, (id(x), site.path)) for x in e.outvars]

    def cond(self, e: Any, values: list[Value], site: _Site) -> list[Value]:
        predicate, *operands = values
        branches = []
        for number, program in enumerate(e.params["branches"]):
            branch_site = site.inside(
                e, under=site.under or _read(predicate.label, e),
                occurs=_occurs_in_branch(site.occurs, predicate.counted, number),
                branches=site.branches | {(id(e), site.path): number})
            branches.append(self.inner(program, operands, branch_site))
        return [_joined([predicate, *alternatives], e, (id(x), site.path))
                for x, alternatives in zip(e.outvars, zip(*branches, strict=True), strict=True)]

    def loop(self, e: Any, values: list[Value], site: _Site) -> list[Value]:
        p, token = e.params, (id(e), site.path, 0)
        first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        for_cond, for_body, carry = values[:first], values[first:second], values[second:]
        body, mark = p["body_jaxpr"], len(self.releases)
        carry = _moving(token, carry, body.jaxpr.invars[second - first:], body.jaxpr.outvars)
        site, goes_on = site.inside(e, loops=(*site.loops, token), occurs=None), None
        while True:
            del self.releases[mark:]  # of a pass with labels that were too low
            inner_site = site._replace(under=site.under or _read(goes_on, e))
            (new,) = self.inner(p["cond_jaxpr"], for_cond + carry, inner_site)
            inner_site = site._replace(under=site.under or _read(new.label, e))
            outs = self.inner(body, for_body + carry, inner_site)
            next_carry = [_carried(old, x, e) if new.label is None else
                          _joined([new, old, x], e, old.origin)
                          for old, x in zip(carry, outs, strict=True)]
            if (next_carry, new.label) == (carry, goes_on):
                return _loop_results(token, carry)
            carry, goes_on = next_carry, new.label

    def scan(self, e: Any, values: list[Value], site: _Site) -> list[Value]:
        p, token = e.params, (id(e), site.path, e.params["length"])
        first, num_carry = programs.scan_sizes(p)
        second = first + num_carry
        constants, carry = values[:first], values[first:second]
        depth, computed = len(site.loops) + 1, list[Counted | None]()
        last = p["length"] - 1 if p["reverse"] else None
        slices = [Value(_sliced(x.label, e), (token, "slice", k), _slice(x.counted, depth, last))
                  for k, x in enumerate(values[second:])]
        body, mark = p["jaxpr"], len(self.releases)
        start = carry
        carry = [x if y.counted is not None and x is y else x._replace(
            counted=_iterated(y.counted, computed, k, depth)) for k, (x, y) in enumerate(zip(
                _moving(token, start, body.jaxpr.invars[first:second], body.jaxpr.outvars),
                start, strict=True))]
        inner_site = site.inside(e, loops=(*site.loops, token))
        while True:
            del self.releases[mark:]
            outs = self.inner(body, constants + carry + slices, inner_site)
            next_carry = [_carried(old, x, e)
                          for old, x in zip(carry, outs[:len(carry)], strict=True)]
            if next_carry == carry:
                computed += [x.counted for x in outs]
                stacked = [Value(_sliced(x.label, e), (token, "stacked", k))
                           for k, x in enumerate(outs[len(carry):])]
                return [x._replace(counted=_last(y.counted, depth, p["length"])) for x, y in zip(
                    _loop_results(token, carry), carry, strict=True)] + stacked
            carry = next_carry


def _moving(token: Any, carry: list[Value], arguments: Sequence[Any],
            results: Sequence[Any]) -> list[Value]:
    """The carries of a loop; those that its body changes differ from iteration to iteration."""
    return [x if argument is result else Value(x.label, (token, "carry", k))
            for k, (x, argument, result) in enumerate(zip(carry, arguments, results, strict=False))]


def _carried(old: Value, new: Value, e: Any) -> Value:
    """A carry after one more iteration; a leaf that is only carried along stays what it is."""
    if old.label == new.label or (old.label is None and isinstance(new.label, Key)):
        label = new.label
    else:
        label = _join([_read(old.label, e), _read(new.label, e)], None)
    return Value(label, old.origin, None if new.counted is None else old.counted)


def _loop_results(token: Any, values: list[Value]) -> list[Value]:
    """The results of a loop."""
    return [Value(x.label, (token, "result", k) if x.origin == (token, "carry", k) else x.origin)
            for k, x in enumerate(values)]


def _joined(values: Sequence[Value], e: Any, origin: Any) -> Value:
    """A value that is one of several."""
    labels = {x.label for x in values[1:]}
    agree = values[0].label is None and len(labels) == 1
    label = labels.pop() if agree else _join([x.label for x in values], e)
    return Value(label, origin)


def _join(labels: Sequence[Label], e: Any) -> Label:
    """The highest label; the first one of these, for messages. Where `e` chooses, rows are read."""
    highest = next((x for kind in (Read, Rows, Key) for x in labels if isinstance(x, kind)), None)
    keys = isinstance(highest, Key) and all(x is None or isinstance(x, Key) for x in labels)
    return highest if e is None or keys else _read(highest, e)


def _read(label: Label, e: Any) -> Label:
    return (Read(label.name, e.primitive.name, programs.line(e))
            if isinstance(label, Rows | Key) else label)


def _sliced(label: Label, e: Any) -> Label:
    """The label of slices: keys of several are keys, rows of a leaf are read."""
    return label if isinstance(label, Key) else _read(label, e)


def _text(label: Any) -> str:
    if isinstance(label, Read):
        return f"computed from {label.name} ({label.operation}, {label.line})"
    return f"{label.name} itself"


def _check_hidden(e: Any, label: Label) -> None:
    """Refuses an operation that hands out what is not clean, or hides a release; see the module."""
    inside = programs.equations(list(e.params.values()))
    if any(x.primitive.name == "private_release" for x in inside):
        raise ValueError(f"update makes a release inside {e.primitive.name} ({programs.line(e)}), "
                         "of rows that are not the data's own there: hand the data to a release "
                         "outside of it.")
    unwritten = {"pallas_call", "empty", "empty_ref"} & {x.primitive.name for x in (e, *inside)}
    if unwritten:
        raise ValueError(f"update calls {unwritten.pop()} outside of a release "
                         f"({programs.line(e)}), which may read memory that nobody wrote: compute "
                         "it by jax.numpy, or inside the operator.")
    for x in (e, *inside):
        if label is not None and (x.effects or programs.calls_host(x)
                                  or x.primitive.name.startswith("custom_vmap")):
            raise ValueError(f"update tells the host, or writes to, what is {_text(label)}: "
                             f"{x.primitive.name}, {programs.line(e)}. Only what a release "
                             "function returns is private.")


def _check_branches(e: Any) -> None:
    """Refuses effects next to releases in a branch or a loop that a `vmap` runs for all lanes.

    Of a condition that differs from lane to lane all branches are run, and one is chosen. Their
    releases may have one noise, which is safe while one of them is seen.
    """
    if _calls_host(e) and any(x.primitive.name == "private_release" for x in _all(e)):
        raise ValueError(f"update tells the host of a release inside {e.primitive.name} "
                         f"({programs.line(e)}). Under sweep or vmap every branch is run, and "
                         "would tell: return what was released, and print it after that.")


def _check_folds(folds: list[Any], counts_before: dict[int, tuple[int, ...]],
                 used: set[Any]) -> None:
    """Refuses keys that those of releases are derived by, `release_keys.Keys`.

    Noise that is drawn under them again is not independent of what is released. Of a number that
    is not known here, that is seen by the key: it must be another one than those of releases.
    """
    for key, number, loops, line in folds:
        for _, moment in _moments(counts_before, loops):
            if number.counted is None:
                repeats_noise = key.counted is None or not used.isdisjoint(
                    _words(key.counted, moment))
            else:
                repeats_noise = bool(np.any(np.asarray(number.counted(moment)) >= 2**31))
            if repeats_noise:
                raise ValueError("update folds a number from 2^31 on, or one that is computed of "
                                 f"more than counts, into the run's key ({line}), as releases do, "
                                 "whose noise it may draw again: fold it into a key of its own, "
                                 "jax.random.fold_in(key, 1).")


def _check_apart(described: Any) -> None:
    """Refuses parts that are charged as if they read other rows each, since all get all rows."""
    parts = getattr(described, "parts", ())
    for part in parts if isinstance(parts, tuple) else ():
        _check_apart(part)
        if isinstance(described, Parallel) and 0 < part.records() < described.records():
            raise ValueError("mechanism(hyper) is a Parallel of parts that read samples of the "
                             "data, and update hands each of them all rows: make it a Sequence.")


def _check_settings(releases: list[_Release], described: Any, outs: list[Value],
                    counted: bool) -> None:
    """Refuses releases of other descriptions than those that are charged, in any program.

    Numbers are the same if they are computed alike, or are equal constants. A
    count of rounds that is traced, not `counted`, leaves structures to `watch`.
    """
    parts = described.answered()
    charged, numbers = {}, iter(outs[len(outs) - len(jax.tree.leaves(list(parts))):])
    for part in parts:
        count = len(jax.tree.leaves(part))
        charged[part.kind, part.place] = jax.tree.structure(part), list(
            itertools.islice(numbers, count))
    for release in releases:
        structure, settings = charged.get(release.stream, (None, []))
        other_structure = counted and structure != release.described.structure
        if release.stream not in charged or other_structure or (
                not all(map(_are_equal, release.settings, settings))):
            raise ValueError(f"update releases ({release.line}) a description that "
                             "mechanism(hyper) does not have, or has with other settings, so that "
                             "nothing charges it: release the parts of mechanism(hyper) as they "
                             "are.")


def _are_equal(released: Value, charged: Value) -> bool:
    if released.origin == charged.origin:
        return True
    constants = [x.counted(()) for x in (released, charged) if x.counted is not None
                 and (np.isscalar(x.origin) or x.origin[0] == "array")]
    # but for rounding to float32
    return len(constants) == 2 and bool(np.allclose(constants[0], constants[1], rtol=1e-6,
                                                    atol=0.0))


def _states(next_counts: dict[int, Counted], size: int,
            rounds: int) -> tuple[list[tuple[int, ...]], dict[int, tuple[int, ...]]]:
    """The counts of the state from the first round on, and those before rounds that are compared.

    All begin at 0. If they grow evenly, every 16th of 256 rounds is compared with the first 16 too.
    """
    def following(state: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(next_counts[k]((state,))) if k in next_counts else 0 for k in range(size))

    states = [(0,) * size]
    while len(states) <= min(rounds, _ROUNDS):
        states.append(following(states[-1]))
    counts_before, step = dict(enumerate(states[:-1])), states[1]
    for t in range(2 * _ROUNDS, min(rounds, _ROUNDS**2), _ROUNDS):
        counts, following_counts = (tuple(number * x for x in step) for number in (t, t + 1))
        if following(counts) == following_counts and states[-1] == tuple(_ROUNDS * x for x in step):
            counts_before[t] = counts
    return states, counts_before


def _moments(counts_before: dict[int, tuple[int, ...]],
             loops: tuple[Any, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Rounds, and of each the counts and the first iterations of loops."""
    for t, state in counts_before.items():
        iterations = itertools.product(*(range(max(1, min(x[-1], _ROUNDS))) for x in loops))
        yield from ((t, (state, *x)) for x in itertools.islice(iterations, _MOMENTS))


def _check_counted(releases: list[_Release], counts_before: dict[int, tuple[int, ...]],
                   states: list[tuple[int, ...]], described: Any,
                   charged_by: int | None) -> set[Any]:
    """Refuses two releases with one key and one number, and uncharged ones.

    Args:
      releases: of a round.
      counts_before: the counts before rounds, by their number.
      states: those from the first round on.
      described: the mechanism that is charged.
      charged_by: which of the counts a statement charges by; None if that is not known.

    Returns:
      The keys of these releases.
    """
    met, counts = dict[Any, Any](), Counter[Any]()
    limits = {} if charged_by is None else {
        (x.kind, x.place): x.releases() for x in described.answered()}
    for release in releases:
        derived = release.key.origin != "key"
        number, key = release.number.counted, release.key.counted
        if number is None or key is None or (
                derived and (release.occurs is None or charged_by is None)) or not all(
                    x[-1] for x in release.loops):
            raise ValueError(f"update makes a release ({release.line}) whose number or key is "
                             "computed of more than counts, or in a loop of unknown length, so "
                             "that it may have one noise with others, or not be charged: number it "
                             "by state.spent, which is to grow in every round by its releases, "
                             "and by the counter of a scan.")
        # iterations that are not looked at are as many as those that are
        times = math.prod(max(x[-1] / _ROUNDS, 1) for x in release.loops)
        for t, moment in _moments(counts_before, release.loops):
            if release.occurs is not None and not release.occurs(moment):
                continue
            keys, numbers = _words(key, moment), np.ravel(number(moment)).tolist()
            for lane in range(max(len(keys), len(numbers))):
                use = release.stream, keys[lane % len(keys)], numbers[lane % len(numbers)]
                event = (t, moment[1:], lane, release.operands)
                last, earlier = met.setdefault(use, (event, release))
                if last != event and not (last[:2] == event[:2] and _exclusive(release, earlier)):
                    raise ValueError(f"update makes two releases number {use[-1]} of one "
                                     f"description under one key, in rounds {last[0]} and {t} "
                                     f"({release.line}), so with one noise, and their difference "
                                     "has none: count on between them, or describe each in a part "
                                     "of its own of a Sequence.")
                if earlier is release and release.occurs is not None:
                    counts[t, release.stream] += times * (
                        0 <= use[-1] < limits.get(release.stream, 0))
    for t, stream in itertools.product(range(1, len(states)), limits):  # after t rounds
        count = sum(counts[k, stream] for k in range(t))
        made_releases.check_count(count, stream, described, states[t][charged_by])
    return {use[1] for use in met}


def _exclusive(first: _Release, second: _Release) -> bool:
    return any(second.branches.get(e, branch) != branch for e, branch in first.branches.items())


def _words(key: Counted, moment: tuple[Any, ...]) -> list[Any]:
    """A key that is compared, of every lane of a vmap."""
    with jax.ensure_compile_time_eval():
        words = np.asarray(jax.random.key_data(key(moment)))
    return [x.tobytes() for x in words.reshape(-1, words.shape[-1])]


# --- values that are computed of the releases made before, and of iterations ---


def _count(k: int, dtype: Any) -> Counted:
    return lambda moment: np.asarray(moment[0][k], dtype)


def _another_key(generator: str) -> Counted:
    """In place of the run's, of which only the derivation counts."""
    def key(moment: tuple[int, ...]) -> Any:
        with jax.ensure_compile_time_eval():
            return jax.random.key(0, impl=generator)

    return key


def _occurs_in_branch(occurs: Counted | None, predicate: Counted | None,
                      branch: int) -> Counted | None:
    """The condition for a release in a branch."""
    if occurs is None or predicate is None:
        return None
    return lambda moment: occurs(moment) and int(predicate(moment)) == branch


def _slice(stacked: Counted | None, depth: int, last: int | None) -> Counted | None:
    """Slices of an array for the scan at this depth, in reverse if `last` is its last iteration."""
    if stacked is None:
        return None

    def slice_of(moment: tuple[int, ...]) -> Any:
        with jax.ensure_compile_time_eval():
            return stacked(moment)[moment[depth] if last is None else last - moment[depth]]

    return slice_of


def _iterated(start: Counted | None, computed: list[Counted | None], k: int,
              depth: int) -> Counted | None:
    """Carry k of the scan at this depth, whose body computes `computed` in the iteration before."""
    if start is None:
        return None

    @functools.cache
    def carry(moment: tuple[int, ...]) -> Any:
        last: Any = computed[k]
        return last((*moment[:depth], moment[depth] - 1)) if moment[depth] else start(moment)

    return carry


def _last(carry: Counted | None, depth: int, length: int) -> Counted | None:
    """The value of a carry of the scan at this depth after its last iteration."""
    return carry and (lambda moment: [carry((*moment[:depth], t)) for t in range(length + 1)][-1])


def _counted(e: Any, values: list[Value]) -> list[Counted | None]:
    """The results of an operation whose operands are counted."""
    inputs = [x.counted for x in values if x.counted is not None]
    # these depend on more than their operands, or on the run's key itself
    unknown = ("random_bits", "random_gamma", "private_release", "axis_index")
    if len(inputs) < len(values) or _calls_host(e) or any(
            x.primitive.name in unknown for x in _all(e)):
        return [None] * len(e.outvars)

    @functools.cache
    def results(moment: tuple[int, ...]) -> Any:
        with jax.ensure_compile_time_eval():
            value = e.primitive.bind(*(x(moment) for x in inputs), **e.params)
        return value if e.primitive.multiple_results else [value]

    def result(k: int) -> Counted:
        return lambda moment: results(moment)[k]

    return [result(k) for k in range(len(e.outvars))]


def _all(e: Any) -> list[Any]:
    """An operation, and those of the programs inside it, but not inside a release."""
    operations = [e, *programs.equations(list(e.params.values()))]
    hidden = {id(x) for release in operations if release.primitive.name == "private_release"
              for x in programs.equations(release.params["program"])}
    return [x for x in operations if id(x) not in hidden]


def _calls_host(e: Any) -> bool:
    """True for a call of the host or a `Ref`, also inside; programs hand up their effects."""
    return any(programs.calls_host(x) or (
        x.effects and not programs.equations(list(x.params.values()))) for x in _all(e))


def _hashable(x: Any) -> Any:
    try:
        hash(x)
    except TypeError:
        return id(x)
    return x
