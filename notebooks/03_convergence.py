# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How fast the gap falls
#
# This notebook runs every algorithm of the library on a problem whose gap has a closed form. It
# shows the gap against the number of records $n$ and against the rounds of a run, and which
# algorithm has the smallest gap at which $(n, \varepsilon)$.
#
# Noise is calibrated to $(\varepsilon, \delta)$. Steps and numbers of rounds are the theorems',
# data are fresh in every run, and gaps are of the population. Nothing is tuned. The cases are those
# of `python -m benchmarks.rates`, which measures more and larger $n$.

# %%
import dataclasses
import math
import os
import sys
from typing import Any

sys.path.extend([".", ".."])  # benchmarks are in the root of the repository

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxminimax as jmm
from benchmarks.rates import __main__ as rates
from benchmarks.rates import cases as rate_cases
from benchmarks.rates import gaps

quick = bool(os.environ.get("JAXMINIMAX_QUICK"))
runs, coins = (16, 4) if quick else (48, 8)
DELTA = rate_cases.DELTA

# %% [markdown]
# ## The cases
#
# `rate_cases` has a problem, a schedule and a theorem for most algorithms; three are added here.
# With $r = \sqrt{d \ln(1/\delta)} / \varepsilon$ the theorems promise, without constants and
# logarithms,
#
# | | gap | rate |
# |---|---|---|
# | `sgda`; `extragradient`, `proximal`, many passes | weak | $n^{-1/2} + r / n$ |
# | `recursive`, `recursive_sgda` | strong | $n^{-1/2} + r / n$ |
# | `extragradient`, one pass | strong | $(r/n)^{1/2} + r/n$ |
# | `proximal`, one pass | strong | $n^{-1/3} + r n^{-2/3}$ |
# | `gda` | strong | $T^{-1} = n^{-2/3}$ |
# | `group_sgd`, `active_groups` on groups of $n$ | excess worst-group risk | $r/n$; $(r/n)^{1/2}$ |
# | `phased_erm`, $p$ groups | excess worst-group risk | $(p/n)^{1/2} + p\,r/n$ |
# | `group_oco` with `ftrl` | excess worst-group risk | $(r^{1/2} + 1)\, n^{-1/2}$ |
# | `ftrl` alone | strong | $((1 + 2 z \sqrt{d \log_2 n}) / n)^{1/2}$, noise multiplier $z$ |

# %%
known = {(c.algorithm, c.variant, c.epsilon): c for c in rate_cases.CASES}


def spread(epsilon: float, dim: int) -> float:
    """r of the table."""
    return math.sqrt(dim * math.log(1 / DELTA)) / epsilon


def active_job(n: int) -> Any:
    """The groups of `group_sgd`; a step on the group of the largest noisy loss."""
    job = rate_cases.group_job(n, 1.0)
    plan = jmm.plan(jmm.active_groups, problem=job.problem, sizes=job.hyper.query.sizes, dim=10,
                    epsilon=1.0, delta=DELTA)
    return dataclasses.replace(job, algorithm=jmm.active_groups, hyper=plan.hyper)


def ftrl_plan(n: int) -> Any:
    """One pass over n records at epsilon = 8, one a round."""
    return jmm.plan(jmm.ftrl, population=n, dim=rate_cases.DIM, bound=rate_cases.BOUND,
                    diameter=rate_cases.NUMBERS["diameter"], epsilon=8.0, delta=DELTA)


def ftrl_job(n: int) -> Any:
    """One pass over the bilinear game of `extragradient`, one record a round."""
    return rate_cases.Job(jmm.ftrl, ftrl_plan(n).hyper, rate_cases.GAME, rate_cases.START,
                          rate_cases.game_sample(n), rate_cases.game_gap)


def on_small_balls(name: str, n: int, epsilon: float) -> Any:
    """A method of `benchmarks.rates.gaps` on the game of small balls, at delta = 1e-6."""
    algorithm, hyper = gaps.METHODS[name](n, epsilon)
    return rate_cases.Job(algorithm, hyper, rate_cases.SMALL, rate_cases.SMALL_START,
                          rate_cases.small_sample(n), rate_cases.small_gap)


def ftrl_rate(n: int) -> float:
    """The theorem's own bound, which the accountant's noise multiplier enters."""
    return ftrl_plan(n).guarantee


@dataclasses.dataclass
class Line:
    """A panel: name, jobs and rate over n, how the theorem's bound falls over the rounds t / T."""

    name: str
    build: Any
    rate: Any
    ns: list[int]
    weak: bool = False
    over_rounds: Any = None


def from_benchmark(algorithm: str, variant: str, epsilon: float, ns: list[int], **more) -> Line:
    """A case of `benchmarks.rates`."""
    c = known[algorithm, variant, epsilon]
    return Line(f"{algorithm}, {variant}, ε = {epsilon:g}", c.build, c.rate, ns,
                c.measure == "weak", **more)


def constant_step(t, rounds):
    """The start is forgotten, the noise stays; the theorem's step makes both equal at the end."""
    return (1 + rounds / t) / 2


def halves(t, rounds):
    """Recursive rounds halve the distance to the solution."""
    return 2.0 ** (rounds - t)


lines = [
    from_benchmark("gda", "T = n^(2/3)", 1.0, [250, 1000, 4000],
                   over_rounds=lambda t, rounds: rounds / t),
    Line("ftrl, one pass, ε = 8", ftrl_job, ftrl_rate, [400, 1600, 6400]),
    from_benchmark("sgda", "Theorem 2", 1.0, [500, 1000, 2000]),
    from_benchmark("extragradient", "one pass", 8.0, [1600, 6400, 25600]),
    from_benchmark("extragradient", "many passes", 8.0, [25, 50, 100]),
    from_benchmark("proximal", "one pass", 8.0, [400, 1600, 6400]),
    from_benchmark("proximal", "many passes", 8.0, [200, 400, 800]),
    from_benchmark("recursive", "default plan", 1.0, [2**12, 2**13, 2**14], over_rounds=halves),
    from_benchmark("recursive_sgda", "default plan", 1.0, [2**12, 2**13, 2**14],
                   over_rounds=halves),
    from_benchmark("group_sgd", "full batches", 1.0, [126, 250, 500]),
    Line("active_groups, full batches, ε = 1", active_job,
         lambda n: (spread(1.0, 1) / n) ** 0.5 + spread(1.0, 10) / n, [250, 500, 1000]),
    from_benchmark("phased_erm", "certified", 1.0, [1280, 5120, 20480], over_rounds=halves),
    from_benchmark("group_oco", "FTRL and EXP3", 10.0, [4000, 16000, 64000]),
]
lines = lines[:1] if quick else lines

# %% [markdown]
# ## Runs
#
# Each point is one program: fresh data, a run, and the gap of its output if it had stopped after
# each round. A weak gap has the mean over data sets inside and the mean over coins outside: `coins`
# groups of runs share their noise. (Few data sets in a group make weak gaps look larger than they
# are.)

# %%
def measured(job, n: int, weak: bool, runs: int = runs) -> tuple[np.ndarray, np.ndarray]:
    """Rounds `[k]`, and gaps `[runs, k]` or, if weak, `[coins, k]`."""
    total = job.hyper.iterations
    rounds = np.unique(np.geomspace(1, total, 40).round().astype(int))
    groups = coins if weak else runs
    keys = jnp.repeat(jax.random.split(jax.random.key(n), groups), runs // groups)

    def one(keys):
        data = job.sample(keys[1])
        _, path = jmm.run(keys[0], job.start, data, job.hyper, job.algorithm, job.problem,
                          lambda state: state.average)
        return jax.tree.map(lambda x: x[rounds - 1], path)

    def program(keys, draws):
        z = jax.lax.map(one, (keys, draws))
        z = jax.tree.map(lambda x: x.reshape(groups, -1, *x.shape[1:]).mean(1), z)
        return jax.vmap(jax.vmap(job.gap))(z)

    # these loops run no slower so, and are compiled in half the time
    options = {"xla_backend_optimization_level": 0 if quick else 1}
    compiled = jax.jit(program, compiler_options=options)
    found = np.asarray(compiled(keys, jax.random.split(jax.random.key(n + 1), runs)))
    assert np.isfinite(found).all(), "a run released NaN"
    return rounds, found


results = []
for line in lines:
    points = []
    for n in line.ns[:2] if quick else line.ns:
        job = line.build(n)
        if n == line.ns[0]:
            claimed = jmm.epsilon(job.algorithm.mechanism(job.hyper), DELTA)
        points.append((n, *measured(job, n, line.weak)))
    ns, ends = [p[0] for p in points], [p[2][:, -1] for p in points]
    slope, low, high = rates.slope(ns, ends)
    theory, _, _ = rates.slope(ns, [np.array([line.rate(n)]) for n in ns])
    results.append((line, points, slope, low, high, theory))
    print(f"{line.name:42s} accountant: ε = {claimed:.4f}   slope {slope:5.2f} [{low:5.2f}, "
          f"{high:5.2f}]   theorem {theory:5.2f}")

for line, _, _, low, _, theory in results:
    assert low < theory + 0.15, f"{line.name} falls more slowly than its theorem"

# %% [markdown]
# Intervals are 95 % bootstrap intervals over runs; "theorem" is the slope of its whole rate over
# the same $n$. Theorems are upper bounds for a whole class of problems, so slopes may be steeper.
# On `gda`'s strongly convex-concave game all error is noise, of order $d/(n\varepsilon)^2$. The
# smallest $n$ of some methods have gaps near that of the start, which limits them. The cell above
# checks that no slope's interval lies more than 0.15 above its theorem's slope. Rates hide
# logarithms.
#
# ## Gap against n

# %%
figure, axes = plt.subplots(-(-len(results) // 4), min(4, len(results)), squeeze=False,
                            figsize=(10, 2.2 * -(-len(results) // 4)), layout="constrained")
for ax in axes.flat[len(results):]:
    ax.axis("off")
for ax, (line, points, slope, _, _, theory) in zip(axes.flat, results, strict=False):
    n = np.array([p[0] for p in points])
    mean = np.array([p[2][:, -1].mean() for p in points])
    error = np.array([p[2][:, -1].std(ddof=1) / len(p[2]) ** 0.5 for p in points])
    rate = np.array([line.rate(int(x)) for x in n])
    ax.errorbar(n, mean, 2 * error, marker="o", markersize=3, capsize=2)
    ax.plot(n, rate * mean[-1] / rate[-1], "k--", linewidth=1)
    ax.set(xscale="log", yscale="log")
    ax.set_title(f"{line.name}\nslope {slope:.2f}, theorem {theory:.2f}", fontsize=7)
    ax.set_xticks(n, [str(x) for x in n])
    ax.minorticks_off()
    ax.tick_params(labelsize=7)
figure.supxlabel("records n (of one group for group_sgd, active_groups)", fontsize=8)
figure.supylabel("gap on the population", fontsize=8)
figure.suptitle("Bars: two standard errors. Dashed: the theorem's rate through the last point. "
                "Replace-one, δ = 1e-5", fontsize=8)
plt.show()

# %% [markdown]
# ## Gap against rounds
#
# The figure has the largest $n$ of each case, and the gap of the running output if the run had
# stopped there. The noise is that of the whole run, so stopping early costs less privacy than the
# title of a panel says. With the theorem's constant step the bound after $t$ of $T$ rounds is
# proportional to $(1 + T/t)/2$: the effect of the start falls like $1/t$ and the noise stays. For
# `gda` it is $T/t$, and recursive rounds halve the distance, $2^{T-t}$ (`recursive_sgda` has a new
# output at the ends of its two rounds only). These shapes are dashed, through the last point, and
# cut off at three times the largest gap.

# %%
figure, axes = plt.subplots(-(-len(results) // 4), min(4, len(results)), squeeze=False,
                            figsize=(10, 2.2 * -(-len(results) // 4)), layout="constrained")
for ax in axes.flat[len(results):]:
    ax.axis("off")
for ax, (line, points, *_) in zip(axes.flat, results, strict=False):
    n, t, gap = points[-1]
    mean, error = gap.mean(0), gap.std(0, ddof=1) / len(gap) ** 0.5
    units = t
    if "recursive_sgda" in line.name:  # rounds of the theorem, not steps
        units = np.where(t < t[-1], np.maximum(1, 2 * t / t[-1]), 2)
    shape = (line.over_rounds or constant_step)(units, units[-1])
    ax.plot(t, mean)
    ax.fill_between(t, np.maximum(mean - 2 * error, 1e-6), mean + 2 * error, alpha=0.3)
    ax.plot(t, np.minimum(shape * mean[-1], 3 * mean.max()), "k--", linewidth=1)
    ax.set(xscale="log", yscale="log")
    ax.set_title(f"{line.name}, n = {n}", fontsize=7)
    ax.tick_params(labelsize=7, which="both")
figure.supxlabel("rounds", fontsize=8)
figure.supylabel("gap on the population", fontsize=8)
figure.suptitle("Bands: two standard errors. Dashed: shape of the theorem's bound over rounds",
                fontsize=8)
plt.show()

# %% [markdown]
# ## Which algorithm wins where
#
# The map compares the algorithms for convex-concave games on one of them, $f = \langle a, w \rangle
# + \langle w, v \rangle - \langle b, v \rangle$ on balls of radius 1/2 in five dimensions each, at
# equal $n$, $\varepsilon$ and $\delta = 10^{-6}$. Each cell names the method with the smallest
# strong gap and, in brackets, how much larger the second best gap is. A star marks a lead of less
# than two standard errors.

# %%
methods = ["sgda, one pass", "extragradient, one pass"] if quick else [
    "sgda, Theorem 2", "sgda, one pass", "extragradient, one pass", "proximal, many passes",
    "recursive", "recursive_sgda"]
grid_n, grid_epsilon = ([128], [1.0]) if quick else ([256, 1024, 4096], [0.5, 2.0, 8.0])
few = 8 if quick else 16
won = np.zeros((len(methods), len(grid_n), len(grid_epsilon), few))
for i, name in enumerate(methods):
    for j, n in enumerate(grid_n):
        for k, epsilon in enumerate(grid_epsilon):
            job = on_small_balls(name, n, epsilon)
            won[i, j, k] = measured(job, n, False, few)[1][:, -1]
average, error = won.mean(-1), won.std(-1, ddof=1) / few**0.5
untrained = float(rate_cases.small_gap(rate_cases.SMALL_START))
print(f"{'strong gap, ±: two standard errors':35s}" + "".join(
    f"n={n}, ε={e:g}".rjust(17) for n in grid_n for e in grid_epsilon))
for i, name in enumerate(methods):
    print(f"{name:35s}" + "".join(f"{a:.3f} ± {2 * s:.3f}".rjust(17) for a, s in zip(
        average[i].flat, error[i].flat, strict=True)))
assert quick or (average.min(0) < untrained).all(), f"someone beats the untrained {untrained:.3f}"
if not quick:
    one_pass = [i for i, name in enumerate(methods) if "one pass" in name]
    assert not np.isin(average.argmin(0), one_pass).any(), "many passes beat one on this game"

# %%
order = np.argsort(average, 0)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
axes[0].imshow(order[0].T, cmap="tab10", vmin=0, vmax=9, origin="lower", aspect="auto", alpha=0.6)
for j in range(len(grid_n)):
    for k in range(len(grid_epsilon)):
        a, b = order[:2, j, k]
        lead = average[b, j, k] - average[a, j, k]
        star = "*" if lead < 2 * math.hypot(error[a, j, k], error[b, j, k]) else ""
        axes[0].text(j, k, f"{methods[a]}\n{average[a, j, k]:.3f} "
                     f"(+{lead / average[a, j, k]:.0%}){star}", ha="center", va="center",
                     fontsize=7)
axes[0].set_xticks(range(len(grid_n)), [str(n) for n in grid_n])
axes[0].set_yticks(range(len(grid_epsilon)), [f"{e:g}" for e in grid_epsilon])
axes[0].set(xlabel="records n", ylabel="ε", title="smallest strong gap, δ = 1e-6, replace-one")
middle = len(grid_epsilon) // 2
for i, name in enumerate(methods):
    axes[1].errorbar(grid_n, average[i, :, middle], 2 * error[i, :, middle], marker="o",
                     markersize=4, capsize=3, label=name)
n = np.array(grid_n)
rate = n**-0.5 + math.sqrt(10 * math.log(1e6)) / (grid_epsilon[middle] * n)
axes[1].plot(n, rate * average[:, -1, middle].min() / rate[-1], "k--", linewidth=1,
             label=r"$n^{-1/2} + r/n$")
axes[1].axhline(untrained, color="grey", linewidth=1, label="untrained")
axes[1].set(xscale="log", yscale="log", xlabel="records n", ylabel="strong gap",
            title=f"ε = {grid_epsilon[middle]:g}; bars: two standard errors")
axes[1].set_xticks(grid_n, [str(n) for n in grid_n])
axes[1].minorticks_off()
axes[1].legend(fontsize=6)
plt.show()

# %% [markdown]
# The cell above checks two things. At every $(n, \varepsilon)$ some method beats the untrained
# start, and no method that reads a record once wins. `recursive` has the best known rate for the
# strong gap. The map compares it with DP-SGDA and the proximal point, which read the data many
# times and are only proven to have a small weak gap. The comparison is for one bilinear game; only
# the theorems hold for all.
