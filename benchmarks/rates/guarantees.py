"""Every plan's guarantee beside what its runs reach, and beside the other plans' at other n.

    python -m benchmarks.rates.guarantees [--json FILE] [--markdown FILE] [--quick]

(1) Guarantees by n: unit balls, a start at their centre, d = 10, records and slopes of norm 1.
(2) Runs of each plan on games whose gaps are known exactly,

    a w + w A v - b v  (records)  +  c w v + (q / 2) (|w|^2 - |v|^2)  (public),

from a start on the edge and one at the centre: records that shift the operator or turn it, with and
without public terms, of which two are larger than the records. Group plans run on distances to
three points. A single run may be above a bound on the mean; none was.
"""

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax import Problem, Saddle

EPSILON, DELTA, D = 1.0, 1e-6, 3
DIAMETER = math.sqrt(8)
KINDS = 8  # of records
STEEP = ("extragradient, one pass", "proximal, one pass", "recursive", "sgda, many passes", "gda")


class Game(NamedTuple):
    """A game of records of norm `bound`, with public coupling and curvature."""

    name: str
    bound: float
    turning: bool = False
    coupling: float = 0.0
    curvature: float = 0.0


GAMES = (Game("shifts", 0.5), Game("bilinear", 1.0, turning=True),
         Game("strongly convex", 0.5, curvature=1.0),
         Game("public coupling 1", 0.05, coupling=1.0),
         Game("public coupling 5", 0.5, coupling=5.0),
         Game("public coupling and curvature", 0.2, coupling=1.0, curvature=0.5))

# algorithm, keywords of its plan, the games that it has a number for; see `numbers`
PLANS: dict[str, tuple[Any, dict[str, Any], Callable[[Game], bool]]] = {
    "sgda, one pass": (jmm.sgda, dict(passes="one"), lambda game: True),
    "sgda, many passes": (jmm.sgda, {}, lambda game: True),
    "extragradient, one pass": (jmm.extragradient, {}, lambda game: True),
    "proximal, one pass": (jmm.proximal, {}, lambda game: True),
    "recursive": (jmm.recursive, dict(solver=jmm.solvers.near_linear), lambda game: True),
    "recursive_sgda": (jmm.recursive_sgda, {}, lambda game: True),
    "ftrl": (jmm.ftrl, {}, lambda game: True),
    "gda": (jmm.gda, {}, lambda game: game.curvature > 0),
    "optimistic, proved": (jmm.optimistic, dict(proved=True, iterations=300), lambda game: True),
    "optimistic, proved, bilinear": (jmm.optimistic, dict(proved=True, iterations=300),
                                     lambda game: True)}
GROUPS = {"group_sgd": jmm.group_sgd, "active_groups": jmm.active_groups,
          "group_oco": jmm.group_oco}


# --- (1) by n ---


def by_n(ns: list[int]) -> list[dict[str, Any]]:
    """Guarantees at the centre of two unit balls, for records of norm 1 and slopes up to 1."""
    known: dict[str, Any] = dict(dim=10, bound=1.0, diameter=DIAMETER, radius=DIAMETER / 2,
                                 epsilon=EPSILON, delta=DELTA)
    more: dict[str, Any] = {name: dict(smooth=1.0) for name in (*STEEP, "optimistic, proved")}
    more |= {"gda": dict(smooth=1.0, modulus=0.5),
             "optimistic, proved, bilinear": dict(smooth=1.0, records=(1.0, 1.0))}
    rows = []
    for name, (algorithm, how, _) in PLANS.items():
        how = {k: x for k, x in how.items() if k not in ("solver", "iterations")}
        made = [jmm.plan(algorithm, population=n, **known, **how, **more.get(name, {}))
                for n in ns if name != "recursive_sgda" or n <= 10**5]
        rows.append({"plan": name, "gap": made[0].gap, "on": made[0].on, "n": ns[:len(made)],
                     "guarantee": [x.guarantee for x in made]})
    return rows


# --- (2) with runs ---


def records(game: Game) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kinds of records (A, a, b), equally likely, with operators of norm at most `bound`."""
    rng = np.random.default_rng(7)
    a, b = (rng.normal(size=(1, D)) + rng.normal(size=(KINDS, D)) for _ in range(2))
    turn = rng.normal(size=(1, D, D)) + 0.7 * rng.normal(size=(KINDS, D, D))
    turn = turn if game.turning else 0 * turn
    steep = np.linalg.norm(turn, 2, axis=(1, 2))
    size = np.hypot(np.linalg.norm(a, axis=1) + steep, np.linalg.norm(b, axis=1) + steep).max()
    return tuple(game.bound / size * x for x in (turn, a, b))


def problem(game: Game) -> Problem:
    """The game; a record is A, a and b."""
    def operator(z: Saddle, record: Any) -> Saddle:
        turn, a, b = record
        return Saddle(a + turn @ z.v, b - turn.T @ z.w)

    def ball(x: jax.Array) -> jax.Array:
        return x / jnp.maximum(1.0, jnp.linalg.norm(x))

    c, q = game.coupling, game.curvature
    return Problem(operator=operator, project=lambda z: Saddle(ball(z.w), ball(z.v)),
                   public=(lambda z: Saddle(c * z.v + q * z.w, -c * z.w + q * z.v))
                   if c or q else None)


def gap(game: Game, z: Saddle, mean: tuple[np.ndarray, ...]) -> np.ndarray:
    """Exact strong gaps of points `[runs, d]` on the mean record `[runs or 1, ...]`."""
    turn, a, b = mean
    w, v, q = np.asarray(z.w, float), np.asarray(z.v, float), game.curvature
    turn = turn + game.coupling * np.eye(D)

    def most(slope: np.ndarray) -> np.ndarray:
        size = np.linalg.norm(slope, axis=1)
        return np.where(size >= q, size - q / 2, size**2 / (2 * q) if q else size)

    return (np.sum(a * w + b * v, 1) + q / 2 * np.sum(w**2 + v**2, 1)
            + most(np.einsum("iab,ia->ib", turn, w) - b)
            + most(np.einsum("iab,ib->ia", turn, v) + a))


def numbers(name: str, game: Game, centre: bool, n: int) -> dict[str, Any]:
    """The keywords of a plan for a game."""
    c, q, slope = game.coupling, game.curvature, np.linalg.norm(records(game)[0], 2, axis=(1, 2))
    own, public = max(float(slope.max()), 1e-3), math.hypot(c, q)
    known: dict[str, Any] = dict(
        population=n, dim=2 * D, bound=game.bound, diameter=DIAMETER, epsilon=EPSILON, delta=DELTA,
        public_bound=math.sqrt(2) * public, radius=DIAMETER / 2 if centre else None)
    if name.split(",")[0] == "optimistic":
        known["smooth"] = own + public
    elif name in STEEP:
        known |= dict(smooth=own, public_smooth=public)
    if name == "gda":
        known["modulus"] = q
    if name.endswith("bilinear"):
        turn = records(game)[0]
        known["records"] = (game.bound, max(1e-9, float(np.sqrt(np.sum(turn**2, (1, 2))).max())))
    return known


def measured(name: str, game: Game, centre: bool, n: int, runs: int) -> dict[str, Any]:
    """A plan's guarantee and the gaps of its runs, on the problem that the guarantee is for."""
    algorithm, how, _ = PLANS[name]
    solved = problem(game)
    planned = jmm.plan(algorithm, **numbers(name, game, centre, n), **how)
    kinds = tuple(jnp.asarray(x, jnp.float32) for x in records(game))

    def one(key: jax.Array) -> tuple[Saddle, jax.Array]:
        draw, own, start = jax.random.split(key, 3)
        rows = jax.random.randint(draw, (n,), 0, KINDS)
        z = jax.random.normal(start, (2, D))
        z = 0 * z if centre else z / jnp.linalg.norm(z, axis=1, keepdims=True)
        data = jax.tree.map(lambda x: jnp.broadcast_to(x, (KINDS, *x.shape[1:]))[rows], kinds)
        end = jmm.run(own, Saddle(*z), data, planned.hyper, algorithm, solved)[0].average
        return end, jnp.bincount(rows, length=KINDS)

    z, counts = jax.jit(lambda keys: jax.lax.map(one, keys), compiler_options={
        "xla_backend_optimization_level": 0})(jax.random.split(jax.random.key(3), runs))
    weights = (np.asarray(counts) / n if planned.on == "records"
               else np.full((runs, KINDS), 1 / KINDS))
    full = (np.broadcast_to(x, (KINDS, *x.shape[1:])) for x in records(game))
    found = gap(game, z, tuple(np.einsum("ik,k...->i...", weights, x) for x in full))
    return {"plan": name, "game": game.name, "start": "centre" if centre else "edge", "n": n,
            **_compared(planned, found)}


def _compared(planned: Any, found: np.ndarray) -> dict[str, Any]:
    return {"gap": planned.gap, "on": planned.on, "guarantee": planned.guarantee,
            "trivial": planned.trivial, "mean": float(found.mean()), "largest": float(found.max()),
            "error": float(found.std(ddof=1) / math.sqrt(len(found))), "runs": len(found),
            "above": int(np.sum(found > planned.guarantee))}


def grouped(name: str, n: int, runs: int, groups: int = 3) -> dict[str, Any]:
    """The same of a plan for groups: squared distances to three points, with different spreads."""
    algorithm, task = GROUPS[name], jmm.problems.group_means(radius=1.0, record_bound=1.0)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(groups, 4))
    centres *= 0.5 / np.linalg.norm(centres, axis=1, keepdims=True)
    widths = np.linspace(0.05, 0.5, groups)
    more: dict[str, Any] = {"iterations": n // 2} if name == "group_oco" else {}
    planned = jmm.plan(algorithm, problem=task, sizes=(n,) * groups, dim=4, epsilon=EPSILON,
                       delta=DELTA, **more)

    def risk(w: np.ndarray, data: Any = None) -> np.ndarray:
        if data is None:
            return np.sum((w[..., None, :] - centres) ** 2, -1) / 2 + widths**2 / 2
        return np.mean(np.sum((w[:, None, None] - data) ** 2, -1), 2) / 2

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        draw, own = jax.random.split(key)
        signs = jax.random.rademacher(draw, (groups, n, 4), jnp.float32) / 2
        data = jnp.asarray(centres, jnp.float32)[:, None] + jnp.asarray(
            widths, jnp.float32)[:, None, None] * signs
        return jmm.run(own, Saddle(jnp.zeros(4), ()), data, planned.hyper, algorithm,
                       task)[0].average.w, data

    w, data = (np.asarray(x, float) for x in jax.jit(lambda keys: jax.lax.map(one, keys))(
        jax.random.split(jax.random.key(5), runs)))

    def least(of: Callable[[np.ndarray], np.ndarray]) -> float:
        return min(float(scipy.optimize.minimize(
            lambda x: float(np.max(of(x))), start, method="Nelder-Mead",
            options=dict(maxiter=4000, xatol=1e-6, fatol=1e-9)).fun)
            for start in (centres.mean(0), centres[-1]))

    def excess(x: np.ndarray, own: np.ndarray) -> float:
        return float(risk(x[None], own[None]).max()) - least(
            lambda u: risk(u[None], own[None])[0])

    found = (risk(w).max(-1) - least(risk) if planned.on == "population" else
             np.array([excess(x, own) for x, own in zip(w, data, strict=True)]))
    return {"plan": name, "game": f"{groups} groups", "start": "centre", "n": n,
            **_compared(planned, found)}


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Guarantees by n, in the order of kinds of gaps, which are never compared with each other."""
    ns = result["n"]
    order = {("strong", "population"): 0, ("weak", "population"): 1, ("strong", "records"): 2}
    rows = sorted(result["by_n"], key=lambda row: (order[row["gap"], row["on"]],
                                                   row["guarantee"][1]))
    return (["plan", "gap", "of", *(f"n = {n:,}" for n in ns)],
            [[f"`{row['plan'].split(',')[0]}`{row['plan'][len(row['plan'].split(',')[0]):]}",
              row["gap"], row["on"], *(f"{x:.3f}" for x in row["guarantee"]),
              *[""] * (len(ns) - len(row["guarantee"]))] for row in rows])


def runs_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Of each plan the range over games of mean and largest measured gap over guarantee."""
    lines = []
    for name in dict.fromkeys(row["plan"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["plan"] == name]
        mean, most = ([row[key] / row["guarantee"] for row in rows] for key in ("mean", "largest"))
        first = name.split(",")[0]
        lines.append([f"`{first}`{name[len(first):]}", rows[0]["gap"], rows[0]["on"],
                      f"{min(row['guarantee'] for row in rows):.3f} to "
                      f"{max(row['guarantee'] for row in rows):.3f}",
                      f"{min(mean):.2f} to {max(mean):.2f}", f"{max(most):.2f}",
                      f"{sum(row['above'] for row in rows)} of {sum(r['runs'] for r in rows)}"])
    return (["plan", "gap", "of", "guarantees", "mean / guarantee", "largest run / guarantee",
             "runs above"], lines)


def main(argv: list[str] | None = None) -> int:
    """Prints both tables."""
    parser = report.Parser(__file__, __doc__.split("\n\n")[1], "json", "markdown")
    parser.add_argument("--quick", action="store_true", help="two games, few runs, small n")
    args = parser.parse_args(argv)
    ns = [1000, 10_000] if args.quick else [1000, 10_000, 100_000]
    n, runs, games = (300, 3, GAMES[2:4]) if args.quick else (2000, 30, GAMES)
    rows = []
    for name, (*_, has) in PLANS.items():
        for game in filter(has, games):
            for centre in (False, True):
                rows.append(measured(name, game, centre, n, runs))
                print(json.dumps(rows[-1]), flush=True)
    rows += [grouped(name, n // 4, runs) for name in GROUPS]  # their rounds grow with n^2
    result = {"n": ns, "by_n": by_n(ns), "rows": rows, "epsilon": EPSILON, "delta": DELTA}
    for header, lines in (table(result), runs_table(result)):
        print(report.table(header, lines))
    report.save(args, result)
    if args.markdown is not None:
        args.markdown.write_text("# Guarantees\n\n" + "\n\n".join(
            report.markdown(*made) for made in (table(result), runs_table(result))) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
