"""Checks a run before it begins: its arguments, its settings, its memory and its time.

Nothing in the report depends on a value of the data. It comes from shapes, dtypes, public settings,
and a synthetic batch of the same shapes.

No label is compared with the set that the problem documents, though labels in another code ({1, 2}
in place of {0, 1}) train a model of something else. An attacker with all records but one may choose
the set so that the others are just below the share of wrong labels at which a run would be refused.
A refusal would then reveal the last one. It would be (epsilon, delta)-private for no delta below 1,
and not charged. So the report names the set.
"""

import dataclasses
import json
import math
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.accounting.epsilon_delta import epsilon
from jaxminimax.algorithms import planning, sgda
from jaxminimax.base import arguments, checks, identity, types
from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.drivers import fingerprint
from jaxminimax.gradients import clipping, unmoved
from jaxminimax.mechanism import Full, Leaf, Repeat, composed, costs, leaves
from jaxminimax.placement import host_data, sharding
from jaxminimax.releases import made_releases, record_isolation, release_keys, watch


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of `check`: `str` gives words, and `to_json` a JSON object.

    Attributes:
      records: n, and the name, shape and dtype of each array of a record.
      parameters: the name, player, shape and dtype of each leaf of z.
      players: for each player, whether it descends or ascends, its numbers and its clip norm.
      labels: the set that the problem documents; None if it documents none.
      privacy: delta, 1/n, and whether noise is set.
      rounds: iterations, releases, and records of a release: public batch size and rows read. Of
        Poisson samples: how likely one is drawn again, at most; where `again` is set, the slots
        at 1/1000, and by which part epsilon is less there for as many records in the mean.
      strategy: the way to compute clipped sums, see `ClippedSum.explain`.
      cost: bytes of per-record gradients, bytes of a compiled round, seconds of a round on a
        synthetic batch; None if it was not measured.
      warnings: changes to make before the run.

    Examples:
        >>> {"players", "rounds", "cost", "warnings"} <= set(jmm.types.Report.__dataclass_fields__)
        True
    """

    records: dict[str, Any]
    parameters: tuple[dict[str, Any], ...]
    players: dict[str, dict[str, Any]]
    labels: tuple[float, ...] | None
    privacy: dict[str, Any]
    rounds: dict[str, Any]
    strategy: str
    cost: dict[str, Any]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns a dictionary of plain Python values."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))

    def __str__(self) -> str:
        def arrays(entries: Any) -> str:
            return ", ".join(f"{x['name']} {x['shape']} {x['dtype']}" for x in entries)

        rows = [("records", f"{self.records['number']:,} of {arrays(self.records['arrays'])}"),
                ("z", arrays(self.parameters))]
        for name, x in self.players.items():
            clip = "not released" if x["clip"] is None else f"clip norm {x['clip']:g}"
            rows.append((f"player {name}", f"{x['moves']}, {x['numbers']:,} numbers, {clip}"))
        if self.labels is not None:
            rows.append(("labels", f"must be among {{{', '.join(f'{x:g}' for x in self.labels)}}}"))
        slots, expected = self.rounds["rows read"], self.rounds["batch size"]
        counts = {k: x for k, x in self.rounds.items() if "again" not in k}
        rows += [("privacy", _plain(self.privacy)), ("rounds", _plain(counts)),
                 ("slots", f"{expected:,.4g} rows expected in {slots:,} slots of a release, which "
                           f"takes the time of {slots / expected:.3g} times as many rows"
                           + _plain_again(self.rounds)),
                 ("sums", self.strategy.replace("\n", "\n" + " " * 12)),
                 ("a round", _plain(self.cost))]
        rows += [("WARNING", x) for x in self.warnings] or [("warnings", "none")]
        return "\n".join(f"{name:<12}{text}" for name, text in rows)


def _plain_again(rounds: dict[str, Any]) -> str:
    if "drawn again" not in rounds:
        return ""
    text = f"; a sample is drawn again with probability {rounds['drawn again']:.2g} at most"
    if "slots if seldom again" in rounds:
        text += f" (1/1,000: {rounds['slots if seldom again']:,} slots"
        saved = rounds["epsilon saved if seldom again"]
        text += ")" if saved is None else f", and epsilon {saved:.1%} less for as many records)"
    return text


def _plain(x: Any) -> str:
    if isinstance(x, dict):
        return ", ".join(f"{k} ({_plain(v)})" if isinstance(v, dict) else f"{k} {_plain(v)}"
                         for k, v in x.items())
    if isinstance(x, bool) or x is None:
        return "unknown" if x is None else "yes" if x else "no"
    return f"{x:,}" if isinstance(x, int) else f"{x:.3g}" if isinstance(x, float) else str(x)


def check(problem: types.AnyProblem, z: Saddle, data: PyTree, hyper: types.Settings,
          algorithm: types.Algorithm[Any, Any] = sgda, *,
          delta: float | None = None, measure: bool = True) -> Report:
    """Checks a run before it starts, and reports what it will do.

    Its warnings name, besides figures that are unusual, what the run cannot learn: parameters that
    no record moves, or that the optimiser does not, and parts of a record that no gradient reads
    (`gradients.unmoved`). For these it computes gradients of synthetic records.

    Args:
      problem: operator, public terms, projection.
      z: initial point; must not depend on the data.
      data: leaves `[n, ...]` or `HostData`; of arrays it reads shapes and dtypes, and compares
        their numbers with arrays that `update` closes over, which it refuses if they are equal.
      hyper: the algorithm's `Hyper`, calibrated or not.
      algorithm: a module such as `sgda`.
      delta: delta of the privacy target.
      measure: whether to compile a round, and to run three on synthetic data of the same shapes,
        for its memory and its seconds, and to check that no two of their releases have one number.
        Memory and seconds are the device's; the rest is the same on every call.

    Raises:
      TypeError: for arguments of another kind, or an operator's or a loss's value of another one.
      ValueError: for a description that is not valid, an operator that reads more than one record,
        or a round whose releases are not those of the description.

    Examples:
        >>> problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.3,
        ...                            radius=Saddle(10.0, 10.0))
        >>> start = jmm.problems.auc_start(jnp.zeros(3))
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=50)
        >>> data = jnp.zeros((100, 3)), jnp.zeros(100)
        >>> report = jmm.check(problem, start, data, hyper, delta=0.02, measure=False)
        >>> [line.split(":")[0] for line in report.warnings]
        ['delta = 0.02 is at or above 1/n = 0.01', 'No noise is set']
    """
    rows, n = _shapes(data, algorithm, hyper, problem, z)
    if delta is not None:
        checks.number("delta", delta, low=0.0, high=1.0)
    described = algorithm.mechanism(hyper)
    composed.check(described)
    grouped = not isinstance(problem, Problem)
    axes = 1 + grouped
    z = arguments.point(z)
    jax.eval_shape(lambda: algorithm.init(z, hyper))  # refuses settings that are not defined
    drawn, operator = problem.random, release_keys.operator_of(problem)
    program, value, record = record_isolation.check(operator, z, rows, axes, drawn=drawn)
    parts: list[Any] = leaves(described)
    main, queries = parts[0], [getattr(part, "query", part) for part in parts]
    clips = main.clips()
    one_norm = clips.get("", next(iter(clips.values()), None))
    clip_norms = Saddle(clips.get("w", one_norm), clips.get("v"))
    sampling = getattr(queries[0], "sampling", Full())
    size = getattr(queries[0], "population", None) or max(getattr(queries[0], "sizes", (n,)))
    read = int(sampling.rows_read(size))
    summed = clipping.clipped_sum(operator, clip_norms)
    batch_of = jax.tree.map(lambda x: jax.ShapeDtypeStruct((max(2, read), *x.shape), x.dtype),
                            (record, jax.ShapeDtypeStruct((2,), jnp.uint32)) if drawn else record)
    cost: dict[str, Any] = {"bytes of gradients": summed.kept_bytes(z, batch_of),
                            "bytes": None, "seconds": None}
    noise = all(query.noise_multiplier is not None for query in queries)
    if measure:
        # noise for a round whose result nobody sees
        cost |= _measured(data, rows, z, hyper if noise else composed.with_noise_of_all(hyper, 1.0),
                          algorithm, problem)
    return Report(
        records={"number": n, "arrays": _arrays("record", record),
                 "rows each": identity.rows_each(data)},
        parameters=tuple(x for name in z._fields for x in _arrays(f"z.{name}", getattr(z, name))),
        players=_players(problem.operator, z, clip_norms),
        labels=getattr(problem, "labels", None),
        privacy={"delta": delta and float(delta), "1/n": 1 / n, "noise is set": noise},
        rounds={"iterations": hyper.iterations, "releases": described.releases(),
                "batch size": float(sampling.batch_size(size)), "rows read": read,
                **_again(sampling, size, hyper, algorithm, delta if noise else None)},
        strategy=summed.explain(z, batch_of, brief=True), cost=cost,
        warnings=(*_warnings(problem, delta, n, noise, z, clip_norms, hyper, queries),
                  *unmoved.notes(program, value, z, record, clip_norms, numbers=True),
                  *unmoved.by_optimiser(getattr(hyper, "optimiser", None), z, clip_norms)))


# --- by shapes alone ---


def _again(sampling: Any, size: int, hyper: Any, algorithm: Any,
           delta: float | None) -> dict[str, Any]:
    """Returns what `Report.rounds` says of samples that are drawn again."""
    if not hasattr(sampling, "seldom_again"):  # samples of other kinds always fit
        return {}
    record = {"drawn again": sampling.drawn_less(size)}
    seldom = sampling.seldom_again(size)
    if sampling.again == seldom.again:
        return record
    saved = None
    if delta and getattr(getattr(hyper, "query", None), "sampling", None) == sampling:
        usual = dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, sampling=seldom))
        spent, lower = (epsilon(algorithm.mechanism(x), delta) for x in (hyper, usual))
        saved = 1 - lower / spent if 0 < spent < math.inf else None
    return record | {"slots if seldom again": int(seldom.rows_read(size)),
                     "epsilon saved if seldom again": saved}


def _shapes(data: PyTree, algorithm: Any, hyper: Any, problem: Any, z: Any) -> tuple[PyTree, int]:
    """Returns shapes and dtypes of the data, and the number of records."""
    arguments.call(jax.random.key(0), z, hyper, algorithm, problem)
    if not isinstance(data, host_data.HostData):
        arguments.records(data.rows if isinstance(data, sharding.Sharded) else data)
    rows = fingerprint.row_shapes(data)
    described = algorithm.mechanism(hyper).records()
    lengths = {x.shape[:1] for x in jax.tree.leaves(rows)}
    if isinstance(data, sharding.Sharded) and not data.grouped:
        return rows, data.population
    if len(lengths) != 1 or lengths == {()}:
        raise ValueError(f"data must share one leading axis of records, got {lengths}.")
    n = lengths.pop()[0]
    if isinstance(problem, Problem) and described and n < described:
        raise ValueError(f"data has {n} records, but hyper describes {described}: population must "
                         "be the number of records.")
    return rows, described or n


def _arrays(name: str, tree: PyTree) -> list[dict[str, Any]]:
    return [{"name": name + jax.tree_util.keystr(path), "shape": list(x.shape),
             "dtype": x.dtype.name} for path, x in jax.tree_util.tree_leaves_with_path(tree)]


def _players(operator: Any, z: Saddle, clip: Saddle) -> dict[str, dict[str, Any]]:
    """Returns every player's sign: that of a loss is known, an operator of your own states it."""
    moves = ("descends the loss", "ascends the loss") if isinstance(
        operator, types.SaddleOperator) else (
        "moves against the operator's w", "moves against the operator's v: it must be -grad_v")
    return {name: {"moves": move, "numbers": sum(a.size for a in jax.tree.leaves(x)),
                   "clip": None if c is None else float(c)}
            for name, move, x, c in zip(Saddle._fields, moves, z, clip, strict=True)}


def _warnings(problem: Any, delta: float | None, n: int, noise: bool, z: Saddle, clip: Saddle,
              hyper: Any, queries: list[Any]) -> tuple[str, ...]:
    texts = [*warnings_of_signs(problem, z), *planning.warnings_of_public(hyper, problem)]
    if delta is not None and delta >= min(0.1, 1 / n):
        texts.append(f"delta = {delta:g} is at or above 1/n = {1 / n:.3g}: publishing a whole "
                     "record, drawn at random, would meet it. Choose one well below 1/n.")
    if not noise:
        texts.append("No noise is set: calibrate(algorithm, hyper, epsilon, delta) sets it.")
    numbers = sum(a.size for c, x in zip(clip, z, strict=True) if c is not None
                  for a in jax.tree.leaves(x))
    for query in queries:
        adaptive = getattr(query, "adaptive", None)
        parameters = numbers + (0 if adaptive is None else adaptive.counts(query))
        if parameters > getattr(query, "parameters", parameters):
            texts.append(f"query.parameters = {query.parameters} is below the {parameters} numbers "
                         "of a release, which would be refused.")
        elif (lost := _lost(query, parameters)) > 0.01:  # share of the noise
            texts.append(f"query.parameters = {query.parameters} is charged for, and a release has "
                         f"{parameters} numbers: parameters={parameters} needs {100 * lost:.1f} % "
                         "less noise for the same epsilon, as less rounding is charged.")
    for name, c, x in zip(Saddle._fields, clip, z, strict=True):
        if c is not None and not jax.tree.leaves(x):
            texts.append(f"clip.{name} is set, but z.{name} has no parameters: leave it None.")
    return tuple(texts)


def _lost(query: Any, parameters: int) -> float:
    """Returns the share of the noise that pays for rounding of numbers that a release lacks."""
    if not hasattr(query, "parameters") or query.noise_multiplier is None:
        return 0.0
    charged, needed = (
        (one if isinstance(one, Leaf) else Repeat(query=one, times=1)).effective_noise_multiplier(
            costs.REPLACE_ONE)
        for one in (query, dataclasses.replace(query, parameters=parameters)))
    return 1 - charged / needed if needed else 0.0


# --- on synthetic data ---


def _measured(data: PyTree, rows: PyTree, z: Saddle, hyper: Any, algorithm: Any,
              problem: Any) -> dict[str, Any]:
    """Bytes and seconds of a compiled round, on synthetic data of these shapes.

    A `ValueError` names two releases of one description with one number, in one round or in two.
    """
    key, state = jax.random.key(0), jax.tree.map(jnp.asarray, algorithm.init(z, hyper))

    @jax.jit
    def one_round(key: jax.Array, state: Any, rows: PyTree) -> Any:
        return watch.update(algorithm, key, state, rows, hyper, problem)

    with made_releases.collected() as releases, warnings.catch_warnings(action="ignore"):
        traced = one_round.trace(key, state, rows)
        record_isolation.check_constants(traced.jaxpr, data, "update")
        compiled = traced.lower().compile()
    memory = compiled.memory_analysis()
    costs: dict[str, Any] = {"bytes": None if memory is None else int(
        memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes)}
    if sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(rows)) > 2**28:
        return costs  # rounds on so much data are not timed
    ones = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), rows)
    rounds_taken = []
    for _ in range(3):
        begun = time.perf_counter()
        state = jax.block_until_ready(compiled(key, state, ones))
        rounds_taken.append(time.perf_counter() - begun)
        made_releases.check_charge(releases, algorithm.mechanism(hyper), int(state.spent))
    return costs | {"seconds": min(rounds_taken)}


# --- signs of the public term, compared at synthetic points; no data are read ---
#
# For an objective with the terms r(w, v), `Problem.public` is P = (grad_w r, -grad_v r), with
#     <a, dP_w[b]> = -<b, dP_v[a]>,    <a, dP_w[a]> = r''[a, a],    <b, dP_v[b]> = -r''[b, b]
# along directions a of w and b of v. So where r depends on both players, a part with the wrong sign
# makes the first two numbers equal. A regulariser holds its player back: its last number is
# positive, and negative with the wrong sign. A term that is linear, c @ w + d @ v, shows nothing.


def warnings_of_signs(problem: Any, z: Saddle) -> tuple[str, ...]:
    """Returns a warning for each sign of the public term that seems to be wrong, near a point."""
    if getattr(problem, "public", None) is None:
        return ()
    at_each = jax.jit(lambda keys: jax.lax.map(lambda key: _derivatives(problem, z, key), keys))
    numbers = np.asarray(at_each(jax.random.split(jax.random.key(0), 16)), np.float64)  # points
    # entries that are 0 or not finite say nothing, at this point
    ww, wv, vw, vv = np.where(np.isfinite(numbers), numbers, 0.0).T
    texts = []
    coupled = np.abs(wv) + np.abs(vw) > 0
    if coupled.any() and np.all(np.abs(wv - vw)[coupled] < 0.1 * np.abs(wv + vw)[coupled]):
        texts.append("One player's part of the public term has the wrong sign: where the terms r "
                     "depend on both players, public(z) is Saddle(grad_w r, -grad_v r), with minus "
                     "the gradient of v, and the derivatives at synthetic points have one sign.")
    for name, sign, curved in (("w", "+", ww), ("v", "-", vv)):
        if np.all(curved < 0):
            texts.append(
                f"The public term drives {name} away: a step against it makes {name} grow, at each "
                f"synthetic point. A regulariser {sign}(c/2)|{name}|^2 of the objective has "
                f"public(z).{name} = +c {name}, as v's part is minus the gradient.")
    return tuple(texts)


def _derivatives(problem: Any, z: Saddle, key: jax.Array) -> jax.Array:
    """Computes <a, dP_w[a]>, <a, dP_w[b]>, <b, dP_v[a]> and <b, dP_v[b]>; small ones are 0."""
    further, along, point_key = jax.random.split(key, 3)
    # near z, and far from it: only there do both signs of a term such as tanh show
    scale = jnp.where(jax.random.bits(point_key) % 2, 1.0, 10.0)
    moved = problem.project(jax.tree.map(
        lambda x, y: x + (scale * y).astype(x.dtype), z, optax.tree.random_like(further, z)))
    middle = jax.tree.map(lambda x, y: ((x + y) / 2).astype(x.dtype), z, moved)
    a, b = optax.tree.random_like(along, z)
    zero_direction = jax.tree.map(jnp.zeros_like, z)

    def public(z: Saddle) -> Saddle:
        return problem.public(z, point_key) if problem.random else problem.public(z)

    def product(x: PyTree, y: PyTree) -> jax.Array:  # 0 if it is small against the norms
        value, norms = optax.tree.vdot(x, y), optax.tree.norm(x) * optax.tree.norm(y)
        return jnp.where(jnp.abs(value) > 1e-3 * norms, value, 0.0)

    public_w, public_v = (jax.jvp(public, (middle,), (direction,))[1]
                  for direction in (Saddle(a, zero_direction.v), Saddle(zero_direction.w, b)))
    return jnp.stack([product(*pair) for pair in ((a, public_w.w), (a, public_v.w), (b, public_w.v),
                                                  (b, public_v.v))])
