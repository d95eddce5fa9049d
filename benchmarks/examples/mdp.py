"""A walker's policy from private transitions: average reward against epsilon, and the arrows."""

import math
from typing import Any

import numpy as np

import jaxminimax as jmm
from benchmarks.examples import demo_mdp, runs
from benchmarks.examples.runs import Outcome, Task, Trained
from jaxminimax import Query, Saddle

DATASETS = ("grid",)
EPSILONS, QUICK, SEEDS = (0.1, 0.3, 1.0, 3.0), (1.0,), 5
_SIDE, _BIAS = 4, 1.0
_NAMES = ((0, 0.35), (0.35, 0), (0, -0.35), (-0.35, 0))  # up, right, down, left


def task(process: tuple[np.ndarray, np.ndarray], *, records: int, rounds: int) -> Task:
    """The saddle problem on transitions of a known process, so that the result can be judged."""
    import jax

    states, actions = process[1].shape
    query = Query(clip=Saddle(10.0, float(states * actions)), population=records,
                  sampling=jmm.Poisson(rate=0.02),
                  noise_multiplier=jmm.mechanism.budget_split(w=0.3))
    return Task(
        "policy", demo_mdp.mdp(states=states, actions=actions, bias=_BIAS),
        demo_mdp.mdp_start(states, actions),
        demo_mdp.transitions(jax.random.key(0), records, *process),
        jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.002), iterations=rounds,
                       averaging=jmm.averaging.TAIL),
        "one transition (i, a, j, r), not one walker",
        ("States and actions were drawn uniformly; which ones there are is public.",))


def run(args: Any) -> Outcome:
    """Trains at every epsilon; policies are compared on the true process."""
    process = demo_mdp.grid_world(2 if args.quick else _SIDE)
    made = task(process, records=20_000 if args.quick else 100_000,
                rounds=300 if args.quick else 1500)
    result = runs.train(made, args.epsilon, args.delta, args.seeds)
    rows = [runs.row(one, args.delta, average_reward=[reward(process, mu) for mu in one.average.v],
                gap=[demo_mdp.mdp_gap(Saddle(h, mu), *process, _BIAS)
                     for h, mu in zip(*one.average, strict=True)]) for one in result]
    _, best, _ = demo_mdp.optimal_policy(*process)
    uniform = reward(process, np.ones_like(process[1]))
    title = (f"{made.hyper.query.population} private transitions of a grid world of "
             f"{len(process[1])} cells; average reward: best {best:.4f}, uniform {uniform:.4f}")
    return Outcome(title, rows, ("average_reward", "gap"),
                   [one.statement for one in result if one.statement],
                   lambda figure: draw(figure, process, rows, result, args.delta))


def reward(process: tuple[np.ndarray, np.ndarray], mu: Any) -> float:
    """Average reward of the policy of mu, on the true process."""
    return demo_mdp.average_reward(*process, np.asarray(demo_mdp.mdp_policy(mu)))


def draw(figure: Any, process: tuple[np.ndarray, np.ndarray], rows: list[dict[str, Any]],
         found: list[Trained], delta: float) -> None:
    """Reward against epsilon; policies as arrows on the differences of values."""
    policy, best, h = demo_mdp.optimal_policy(*process)
    near = min((x for x in found if x.epsilon < math.inf),
               key=lambda x: abs(math.log(x.epsilon)))
    figure.set_size_inches(11, 3.6)
    left, *maps = figure.subplots(1, 3)
    runs.against_epsilon(left, rows, "average_reward", "C0", "private policy")
    left.axhline(best, color="k", linewidth=1, label="best policy")
    left.axhline(reward(process, np.ones_like(process[1])), color="0.6", linestyle=":",
                 label="uniform policy")
    left.set(ylabel="average reward a step", title=f"delta = {delta:g}; broken: without noise")
    left.legend(fontsize="x-small")
    own = np.asarray(near.average.w[0], np.float64)
    for axes, name, values, shown in (
            (maps[0], f"private, {runs.epsilon_label(near.epsilon)}",
             own - (own.max() + own.min()) / 2,
             np.asarray(demo_mdp.mdp_policy(near.average.v[0]))),
            (maps[1], "best", h, policy)):
        side = math.isqrt(len(h))
        image = axes.imshow(values.reshape(side, side), cmap="viridis", vmin=h.min(), vmax=h.max())
        for i, chances in enumerate(shown[:-1]):  # in the last cell all actions are one
            for (x, y), chance in zip(_NAMES, chances, strict=True):
                if chance > 0.05:
                    axes.annotate("", (i % side + x * chance, i // side - y * chance),
                                  (i % side, i // side),
                                  arrowprops=dict(arrowstyle="->", color="w", lw=1.5))
        axes.text(side - 1, side - 1, "goal", ha="center", va="center", fontsize=8)
        axes.set(title=f"{name}: actions, values", xlabel="column", ylabel="row",
                 xticks=range(side), yticks=range(side))
    figure.colorbar(image, ax=maps, label="difference of values h")
