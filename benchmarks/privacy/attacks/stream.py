"""What an attack attains of the epsilon that is claimed, of what is no repeated query.

Where a record is read once: certified solutions of disjoint phases, trees of noisy sums, single
losses. And differences of operators behind an anchor. One record is replaced by its opposite, and
the attack sees the path of the released points and weights. All other records are zero, so that a
point tells what was released of the one record.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import signal as filters

import jaxminimax as jmm
from jaxminimax import Problem, Saddle
from jaxminimax import audit as auditor
from jaxminimax.audit import linear
from jaxminimax.audit.pairs import Rounds, first_release
from jaxminimax.audit.signals import signal_of
from jaxminimax.mechanism import CorrelatedSums, GroupSolution, TreeSums
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.factorisation import coefficients
from jaxminimax.mechanism.solutions import solution_length

CLIP, BOUND, STEP, WEIGHT_STEP = 0.5, 2.0, 1.0, 0.02
_GIANT, _FAR = 1e3, 1e3
_TOGETHER = 500
_START = Saddle(jnp.zeros(1, jnp.float32), ())
_MEASURED = 4000  # runs that the signal is measured on


@dataclasses.dataclass(frozen=True)
class Attack:
    """One mechanism to attack.

    Attributes:
      name: what is attacked, in words.
      algorithm: the module.
      hyper: not calibrated.
      problem: with records that are their own gradient, or loss.
      data: the two data sets, leaves with a leading axis of 2.
      observe: `state -> tree`, what the attack keeps of a round.
      scores: `(path, hyper) ->` statistics of the runs by name, each `[runs]`.
      added: `(state, released) -> tree`, the numbers whose noise is measured.
      measured: `(rounds, mechanism) -> Signal`, their signal.
    """

    name: str
    algorithm: Any
    hyper: Any
    problem: Any
    data: Any
    observe: Callable[[Any], Any]
    scores: Callable[[Any, Any], dict[str, np.ndarray]]
    added: auditor.pairs.Observe = first_release
    measured: Callable[..., auditor.Signal] = signal_of


# --- solutions of disjoint phases ---

# gradients of a line are the same everywhere: a phase's solution is c - (mean record) / mu
LINES = jmm.problems.worst_group(
    lambda w, x: jnp.clip(x, -1.0, 1.0).astype(w.dtype) * w[0] + _FAR, jmm.problems.ball(_FAR),
    lipschitz=1.0, bound=2 * _FAR, smooth=1e-9, convex=True)


def _moves(path: np.ndarray, hyper: Any) -> dict[str, np.ndarray]:
    """The record's phase alone, and all of them in case it is read in others too."""
    query = hyper.query
    moved = np.diff(path[..., 0], axis=1, prepend=0.0)
    size = [concrete(solution_length(query, query.reg_w * 2.0**t))
            for t in range(query.phases)]
    moved = moved / np.array(size)
    return {"likelihood ratio": moved[:, 1], "all phases": moved.sum(1)}


def solutions() -> Attack:
    """A record of the second of three phases."""
    query = GroupSolution(lipschitz=1.0, bound=2 * _FAR, smooth=1e-9, diameter=2 * _FAR, reg_w=1.0,
                          reg_lam=1e10, sizes=(12,), phases=3)
    data = np.zeros((2, 1, 12), np.float32)
    data[:, 0, 5] = _GIANT, -_GIANT
    return Attack("phases of 4 records", jmm.phased_erm,
                  jmm.phased_erm.Hyper(query=jmm.phased_erm.certified(query)), LINES,
                  jnp.asarray(data), lambda state: state.z.w, _moves)


# Two groups that pull to both sides, and a record that moves the balance of their weights: with
# slopes of (reg_w reg_lam)^(1/2) it moves the solution by what the second term of the sensitivity
# allows, B / (4 n (reg_w reg_lam)^(1/2)), but for the curvature of the weights
_SLOPE, _HALF = 0.1, 0.1
WEIGHED = jmm.problems.worst_group(
    lambda w, x: (jnp.clip(x[0], -1.0, 1.0) * _SLOPE * w[0]
                  + jnp.clip(x[1], 0.0, 1.0) + _SLOPE * _HALF).astype(w.dtype),
    jmm.problems.ball(_HALF), lipschitz=_SLOPE, bound=1 + 2 * _SLOPE * _HALF, smooth=1e-9,
    convex=True)


def weights(phases: int = 2, each: int = 100) -> Attack:
    """A record of the first phase that moves the groups' weights."""
    query = GroupSolution(lipschitz=WEIGHED.lipschitz, bound=WEIGHED.bound, smooth=1e-9,
                          diameter=2 * _HALF, reg_w=1.0, reg_lam=_SLOPE**2,
                          sizes=(phases * each,) * 2, phases=phases)
    data = np.zeros((2, 2, phases * each, 2), np.float32)
    data[:, 0, :, 0], data[:, 1, :, 0] = 1.0, -1.0
    data[..., 1] = 0.5
    data[:, 0, 0, 1] = 0.0, 1.0
    return Attack("two groups' weights", jmm.phased_erm,
                  jmm.phased_erm.Hyper(query=jmm.phased_erm.certified(query)), WEIGHED,
                  jnp.asarray(data), lambda state: state.z.w,
                  lambda path, _: {"first phase": path[:, 0, 0]})


# --- a tree of noisy sums ---

GRADIENTS = Problem(operator=lambda z, x: Saddle(x, ()))


def _prefix_ratio(total: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """Likelihood ratio of prefix sums `[runs, leaves]` that hold the record from some leaf on.

    Args:
      total: the noisy sums.
      leaf: the record's leaf in each run, from 0; beyond the last if it was not read.
    """
    t = np.arange(1, total.shape[1] + 1)
    known = [(k, j) for k in range(int(t[-1]).bit_length()) for j in range(1, (t[-1] >> k) + 1, 2)]
    inside = np.array([[s >> k & 1 == 1 and s >> k == j for k, j in known] for s in t], float)
    weight = np.linalg.solve(inside @ inside.T, np.tril(np.ones((len(t), len(t) + 1))))
    return np.sum(total * weight.T[leaf], 1)


def tree(leaves: int = 6) -> Attack:
    """The first record of a pass, which is in the most nodes."""
    data = np.zeros((2, leaves, 1), np.float32)
    data[:, 0, 0] = _GIANT, -_GIANT
    hyper = jmm.ftrl.Hyper(query=TreeSums(clip=CLIP, leaves=leaves), step=STEP)
    return Attack(f"{leaves} leaves", jmm.ftrl, hyper, GRADIENTS, jnp.asarray(data),
                  lambda state: state.memory[1].w,
                  lambda path, _: {"likelihood ratio": _prefix_ratio(
                      path[..., 0], np.zeros(len(path), int))})


def _column_ratio(total: np.ndarray, bands: int) -> np.ndarray:
    """Likelihood ratio of prefix sums `[runs, leaves]` whose first leaf is the record.

    What the noise is made of is independent, and the record moves it along the column c.
    """
    a = coefficients(bands)
    made = filters.lfilter([1.0], a / a[0], np.diff(total, prepend=0.0))
    column = filters.lfilter([1.0], a / a[0], np.eye(1, total.shape[1])[0])
    return np.asarray(made @ column)


def correlated(leaves: int = 6, bands: int = 3) -> Attack:
    """The same, of sums with correlated noise."""
    data = np.zeros((2, leaves, 1), np.float32)
    data[:, 0, 0] = _GIANT, -_GIANT
    query = CorrelatedSums(clip=CLIP, leaves=leaves, bands=bands)
    return Attack(f"{leaves} leaves, {bands} bands", jmm.ftrl,
                  jmm.ftrl.Hyper(query=query, step=STEP), GRADIENTS, jnp.asarray(data),
                  lambda state: state.memory[1].w,
                  lambda path, _: {"likelihood ratio": _column_ratio(path[..., 0], bands)})


# --- one pass over groups ---

READ_ONCE = jmm.GroupProblem(
    loss=lambda w, x: x["loss"].astype(w.dtype), operator=lambda z, x: Saddle(x["gradient"], ()),
    project=lambda w: w, diameter=1.0, lipschitz=CLIP, bound=BOUND)


def _losses(path: Any, hyper: Any) -> tuple[np.ndarray, np.ndarray]:
    """The released losses, `[runs, rounds]`, and which of them are of the first group."""
    log, turns = path["log_weights"], path["turns"]
    before = np.concatenate([np.log(np.full_like(log[:, :1], 0.5)), log[:, :-1]], 1)
    first = np.diff(turns[..., 0], axis=1, prepend=0) == 1
    # the drawn group's log weight falls by eta l / v against the other's, l = U - loss
    fell = (before - log)[..., 0] - (before - log)[..., 1]
    weight = np.exp(np.where(first, before[..., 0], before[..., 1]))
    losses = hyper.query.parts[1]
    # above U noisy losses are clipped: the attack looks for those below
    return concrete(jmm.group_oco.offset(losses, len(hyper.sizes))) - (
        np.where(first, fell, -fell) * weight / WEIGHT_STEP), first


def _first_turn(path: Any, hyper: Any) -> dict[str, np.ndarray]:
    """What the first turn of the first group released; nothing if it never had one."""
    each, first = _losses(path, hyper)
    drawn = (path["turns"][..., 0] == 1) & first
    loss = np.where(drawn, each, BOUND / 2).sum(1) - (drawn.shape[1] - 1) * BOUND / 2
    # of the others the losses are known to be 0, and so is their noise
    others = np.where(drawn, 0.0, each)
    scores = {"loss": loss, "noise of the others": others.sum(1)}
    for t in range(each.shape[1]):
        scores[f"loss less that of round {t + 1}"] = loss - others[:, t]
    leaf = np.where(drawn.any(1), drawn.argmax(1), drawn.shape[1])
    scores["likelihood ratio"] = _prefix_ratio(path["total"][..., 0], leaf)
    return scores


def _in_one_round(found: Rounds, mechanism: Any, **how: Any) -> auditor.Signal:
    """Signal of single losses: a record is in one of the rounds, whichever it is."""
    signal, rounds = signal_of(found, mechanism, law="laplace", **how), found.noisy.shape[1]
    return dataclasses.replace(signal, attained=signal.attained / rounds, low=signal.low / rounds,
                               high=signal.high / rounds)


def one_pass(role: str, rounds: int = 4) -> Attack:
    """The first or the second record of a group's first pair."""
    n = 2 * rounds
    gradient = np.zeros((2, 2, n, 1), np.float32)
    loss = np.full((2, 2, n), 0.0, np.float32)
    row = 0 if role == "gradient" else 1
    gradient[:, 0, row, 0] = _GIANT, -_GIANT
    loss[:, 0, row] = _GIANT, -_GIANT
    hyper = jmm.group_oco.Hyper(
        query=jmm.group_oco.releases(clip=CLIP, bound=BOUND, iterations=rounds), step=STEP,
        weight_step=WEIGHT_STEP, sizes=(n, n))
    return Attack(f"{rounds} rounds, for its {role}", jmm.group_oco, hyper, READ_ONCE,
                  {"gradient": jnp.asarray(gradient), "loss": jnp.asarray(loss)},
                  lambda state: {"log_weights": state.log_weights, "turns": state.turns,
                                 "total": state.online.memory[1].w}, _first_turn,
                  *((lambda _, released: released[1], _first_leaf) if role == "gradient"
                    else (first_release, _in_one_round)))


def _first_leaf(found: Rounds, mechanism: Any, **how: Any) -> auditor.Signal:
    """Signal of a group's gradients among the runs whose first round reads the record."""
    one, two = np.moveaxis(found.quiet, 2, 0)
    there = np.any(one[:, 0] != two[:, 0], -1)
    kept = found._replace(noisy=found.noisy[there], quiet=found.quiet[there])
    return signal_of(kept, mechanism.parts[0], **how)


def attacks() -> tuple[Attack, ...]:
    """All of them."""
    return (solutions(), tree(), one_pass("gradient"), one_pass("loss"), weights(), correlated())


def signal(key: jax.Array, attack: Attack, hyper: Any, *, runs: int, mechanism: Any = None,
           **how: Any) -> auditor.Signal:
    """How far the record moves what is released, in units of its noise; as `jaxminimax.audit`.

    Args:
      key: for all the runs.
      attack: one of `attacks`.
      hyper: its hyper, with noise multipliers.
      runs: on the first data set.
      mechanism: what is charged; None: the hyper's own.
      **how: see `jaxminimax.audit.signal_of`.
    """
    if attack.measured is _in_one_round:  # so that noise hardly decides which group is drawn
        hyper = dataclasses.replace(hyper, weight_step=1e-3 * WEIGHT_STEP)
    result = auditor.pairs.rounds(key, attack.algorithm, hyper, _START, attack.data, attack.problem,
                            attack.added, runs)
    made = attack.algorithm.mechanism(hyper) if mechanism is None else mechanism
    return attack.measured(result, made, **how)


def audit(key: jax.Array, attack: Attack, hyper: Any, delta: float, *, runs: int,
          confidence: float = 0.999) -> auditor.Audit:
    """Attacks whole runs and compares with what the accountant claims; as `jaxminimax.audit`.

    Args:
      key: for all the runs.
      attack: one of `attacks`.
      hyper: its hyper, calibrated.
      delta: of the bound and of the claim.
      runs: on each of the two data sets.
      confidence: of the lower bound.
    """
    @jax.jit
    def all_of(keys: jax.Array, data: Any) -> Any:
        def one(key: jax.Array) -> Any:
            return jmm.run(key, _START, data, hyper, attack.algorithm, attack.problem,
                           attack.observe)[1]

        return jax.lax.map(lambda several: jax.lax.map(one, several), keys)

    keys = jax.random.split(key, (2, -(-runs // _TOGETHER), _TOGETHER))
    seen = [jax.device_get(all_of(keys[i], jax.tree.map(lambda x, i=i: x[i], attack.data)))
            for i in range(2)]
    paths = [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:runs].astype(np.float64), path)
             for path in seen]
    one, two = (attack.scores(path, hyper) for path in paths)
    # noise that cancels shows in a statistic of its own, whatever the path is made of
    one["linear"], two["linear"] = linear(paths[0], paths[1], runs // 2)
    value, name, hits, trials = auditor.lower_bound(one, two, delta, confidence)
    claimed = jmm.epsilon(attack.algorithm.mechanism(hyper), delta)
    result = signal(key, attack, hyper, runs=min(runs, _MEASURED), confidence=confidence)
    return auditor.Audit(value, claimed, delta, confidence, "replace_one", "worst", name, runs,
                         hits, trials, result)
