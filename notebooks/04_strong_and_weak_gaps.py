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
# # Strong gaps, weak gaps and primal risk
#
# Let $F(w, v) = \mathbb{E}_x f(w, v; x)$ and let $(w, v)$ be the output of a private algorithm,
# random through its data set $S$ and its coins. Three numbers are in use:
#
# $$\text{strong} = \mathbb{E} \Big[ \max_{v'} F(w, v') - \min_{w'} F(w', v) \Big], \qquad
# \text{weak} = \mathbb{E}_{\text{coins}} \Big[ \max_{v'} \mathbb{E}_S F(w, v')
# - \min_{w'} \mathbb{E}_S F(w', v) \Big],$$
#
# $$\text{primal risk } R(w) = \max_{v'} F(w, v'), \qquad
# \text{excess} = \mathbb{E} R(w) - \min_{w'} R(w').$$
#
# The coins are the algorithm's noise and samples. The paper of DP-SGDA has them inside, like the
# data, which makes the weak gap smaller still. `metrics.weak_gap` is the gap above, and gives the
# other if you pass all runs at once. Always weak ≤ strong and excess primal risk ≤ strong.
# Theorems about stability (those of DP-SGDA and of extragradient with many passes) bound the weak
# gap. Only the strong gap shows that the one output you hold is an approximate saddle point. All
# metrics read the data: use them for study, and never release them.

# %%
import dataclasses
import math
import os
import sys

sys.path.extend([".", ".."])  # benchmarks are in the root of the repository

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxminimax as jmm
from benchmarks.rates import cases as rate_cases
from benchmarks.rates import gaps
from jaxminimax import Saddle, metrics

quick = bool(os.environ.get("JAXMINIMAX_QUICK"))
coins, sets = (4, 4) if quick else (8, 16)
DELTA = rate_cases.DELTA

# %% [markdown]
# ## Weak is 0 and strong is as large as can be
#
# $f = wv$ on $[-1, 1]^2$, and records are fair signs. The output $w$ is the majority of the first
# half of the records, and $v$ that of the second half (of an odd number each). The output is always
# a corner: its gap is 2, the largest there is. Its mean over data sets is the saddle point, so the
# weak gap is 0. The plug-in estimate from $R$ data sets is $|\bar w| + |\bar v|$, which is not 0:
# its mean is $2 \sqrt{2 / (\pi R)}$, dashed. **A weak gap estimated from few data sets is too
# large**, by $O(R^{-1/2})$ where gaps have kinks.

# %%
counts = [100, 1000] if quick else [100, 300, 1000, 3000, 10_000, 30_000]
corner = gaps.halves(10, max(counts))
signs = np.random.default_rng(3).choice([-1, 1], size=(20, max(counts), 10))
majorities = np.sign(np.stack([signs[..., :5].sum(-1), signs[..., 5:].sum(-1)]))
plug_in = np.array([np.abs(majorities[:, :, :r].mean(2)).sum(0) for r in counts])
print(f"strong gap {corner['strong']:.4f}; weak gap, by plug-in over {max(counts)} data sets "
      f"{corner['weak']:.4f}; variance of the output {corner['variance']:.3f}")
assert corner["strong"] == 2.0, "every output is a corner"
assert corner["weak"] < 10 / math.sqrt(max(counts)), "the weak gap is 0 but for the plug-in"

figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.errorbar(counts, plug_in.mean(1), 2 * plug_in.std(1, ddof=1) / 20**0.5, marker="o", markersize=4,
            capsize=3, label="weak gap, plug-in")
ax.plot(counts, 2 * np.sqrt(2 / (np.pi * np.array(counts))), "k--", linewidth=1,
        label=r"$2 (2 / (\pi R))^{1/2}$")
ax.axhline(corner["strong"], color="C3", label="strong gap")
ax.set(xscale="log", yscale="log", xlabel="data sets R", ylabel="gap",
       title="f = w v: bars are two standard errors")
ax.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## The hard linear instance
#
# $$f(w, v; (a, b)) = \langle a, w \rangle + c \langle w, v \rangle - \langle b, v \rangle, \qquad
# \|w\|, \|v\| \le 1, \qquad a = \lambda e_1 + u/2, \quad b = \lambda e_d + u'/2,$$
#
# with $u, u'$ uniform on the sphere and $\lambda = n^{-1/2} + \sqrt{d \ln(1/\delta)}/(n
# \varepsilon)$, the size of the lower bound. The start $(0, 0)$ has a gap of $2 \lambda$, and no
# algorithm beats it by more than a constant factor. With means $A, B$ the strong gap is $\langle A,
# w\rangle + \|c w - B\| + \|A + c v\| + \langle B, v\rangle$. For $c = 0$ it is linear in the
# output, so **weak and strong gap are equal**. For $c > 0$ they are not.
#
# The algorithm is DP-SGDA with the schedule of its Theorem 2 ($T = n$ rounds, Poisson samples),
# which bounds the weak gap by $O(n^{-1/2} + \sqrt{d \ln(1/\delta)}/(n \varepsilon))$. The paper
# shows no figure of this. The noise here is calibrated; the paper's formula has two to three times
# as much.

# %%
def hard(n: int, coupling: float, private: bool, epsilon: float = 1.0):
    """The case of `benchmarks.rates` with a bilinear term, and its population."""
    job = rate_cases.sgda_job(n, epsilon)
    size = 1 / math.sqrt(n) + math.sqrt(10 * math.log(1 / DELTA)) / (n * epsilon)
    axes = jnp.eye(10, dtype=jnp.float32)
    mean = np.asarray(size * axes[:1]), np.asarray(size * axes[-1:])
    problem = jmm.problems.bilinear_game(coupling=coupling, radius=Saddle(1.0, 1.0))
    clip = 0.5 + size + coupling  # above every gradient
    query = dataclasses.replace(job.hyper.query, clip=Saddle(clip, clip))
    if not private:
        query = dataclasses.replace(query, noise_multiplier=Saddle(0.0, 0.0))
    return dataclasses.replace(job, problem=problem,
                               hyper=dataclasses.replace(job.hyper, query=query)), mean, size


def outputs(job, coins: int = coins, sets: int = sets, seed: int = 0):
    """What runs put out, and the gap on their own training data; leaves `[coins, sets, ...]`.

    A row shares its coins; data are fresh.
    """
    def one(keys):
        data = job.sample(keys[1])
        z = jmm.run(keys[0], job.start, data, job.hyper, job.algorithm, job.problem)[0].average
        return z, metrics.strong_gap(job.problem, z, data)

    key, other = jax.random.split(jax.random.key(seed))
    keys = jnp.repeat(jax.random.split(key, coins), sets)
    program = jax.jit(lambda *k: jax.lax.map(one, k),
                      compiler_options={"xla_backend_optimization_level": 0 if quick else 1})
    z, training = program(keys, jax.random.split(other, coins * sets))
    return jax.tree.map(lambda x: np.asarray(x).reshape(coins, sets, *x.shape[1:]), (z, training))


def gap_at(coupling, z, a, b):
    """The strong gap in closed form, for balls of radius 1; leading axes of z stay."""
    return (z.w @ a + np.linalg.norm(coupling * z.w - b, axis=-1) + z.v @ b
            + np.linalg.norm(a + coupling * z.v, axis=-1))


def three(coupling, z, mean):
    """Strong gap of every run `[coins, sets]`; weak gaps with coins outside `[coins]` and inside.

    The last comes with its jackknife standard error over groups of coins.
    """
    a, b = mean[0][0], mean[1][0]
    rows = Saddle(*(x.mean(1) for x in z))
    inside = gap_at(coupling, Saddle(*(x.mean(0) for x in rows)), a, b)
    left = [gap_at(coupling, Saddle(*(np.delete(x, i, 0).mean(0) for x in rows)), a, b)
            for i in range(len(rows.w))]
    error = np.std(left) * (len(left) - 1) ** 0.5
    return gap_at(coupling, z, a, b), gap_at(coupling, rows, a, b), (inside, error)


def one_way(values: np.ndarray) -> float:
    """Standard error of the mean over groups of coins."""
    return float(values.std(ddof=1) / len(values) ** 0.5)


ns = [125] if quick else [250, 500, 1000, 2000]
settings = [(0.0, True), (0.5, True)] if quick else [(0.0, False), (0.0, True), (0.5, False),
                                                     (0.5, True)]
table, kept = {}, {}
print("  c  private      n  accountant's ε       strong            weak          weak, coins inside"
      "   rate")
for coupling, private in settings:
    for n in ns:
        job, mean, size = hard(n, coupling, private)
        z, training = outputs(job, seed=n)
        strong, weak, inside = three(coupling, z, mean)
        kept[coupling, private, n] = z, mean, training
        row = [(strong.mean(), one_way(strong.mean(1))), (weak.mean(), one_way(weak)), inside]
        table[coupling, private, n] = np.array(row), size
        spent = jmm.epsilon(jmm.sgda.mechanism(job.hyper), DELTA) if private else math.inf
        print(f"{coupling:4.1f}  {private!s:7s} {n:6d}  {spent:12.4f}   "
              + "   ".join(f"{m:.4f} ± {2 * e:.4f}" for m, e in row) + f"     {size:.4f}")

# %% [markdown]
# Errors are two standard errors over groups of runs that share their coins.

# %%
for (coupling, _, n), (row, size) in table.items():
    strong, weak, inside = row[:, 0]
    assert inside <= weak + 1e-6 <= strong + 2e-6, "a maximum is convex: weak gaps are smaller"
    if coupling == 0:
        assert abs(strong - inside) < 1e-4, "linear in the output: all three are equal"
        assert 0.5 < strong / size < 2.5, f"the gap has the theorem's rate at n = {n}"
    else:
        assert inside < 0.75 * strong, f"at n = {n} the weak gap hides a part of the strong one"
if not quick:
    assert table[0.5, True, 250][0][0, 0] > 2 * table[0.5, True, 250][1], "worse than the start"

figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
kinds = (("strong", "-", "o"), ("weak", "-.", "s"), ("weak, coins inside", ":", "^"))
for ax, coupling in zip(axes, (0.0, 0.5), strict=True):
    for private in sorted({p for _, p in settings}):
        rows = np.array([table[coupling, private, n][0] for n in ns])
        word = f"ε = 1, δ = {DELTA:g}" if private else "no privacy"
        for k, (kind, style, marker) in enumerate(kinds):
            ax.errorbar(ns, rows[:, k, 0], 2 * rows[:, k, 1], marker=marker, markersize=4,
                        capsize=3, linestyle=style, color="C0" if private else "C2",
                        label=f"{kind}, {word}")
    rate = np.array([table[coupling, True, n][1] for n in ns])
    ax.plot(ns, rate, "k--", linewidth=1, label=r"$\lambda$, the theorem's rate")
    ax.plot(ns, 2 * rate, color="grey", linewidth=1, label=r"$2 \lambda$, the start")
    ax.set(xscale="log", yscale="log", xlabel="records n", title=f"c = {coupling:g}")
    ax.set_xticks(ns, [str(n) for n in ns])
    ax.minorticks_off()
axes[0].set_ylabel("gap on the population")
axes[0].legend(fontsize=6, loc="lower left")
figure.suptitle("DP-SGDA by Theorem 2, replace-one; bars: two standard errors", fontsize=9)
plt.show()

# %% [markdown]
# For $c = 1/2$ and $n = 250$ the strong gap of the private output is larger than that of the start,
# $2 \lambda$. The weak gap with coins inside is below three quarters of it at every $n$, because
# noise averages out. With the coins outside only the randomness of the data averages out. You hold
# one output and not the mean of many runs' outputs, so the strong gap counts.
#
# ## Bias of the plug-in estimates
#
# Left: the weak gap for $c = 1/2$ estimated from $R$ data sets per coin. One data set gives the
# strong gap. The bias at $R$ is $O(R^{-1/2})$ at kinks and $O(R^{-1})$ elsewhere. More data sets
# make the estimate smaller, with and without privacy. Right: the strong gap of one output, on a
# sample in place of the population. Fresh samples of $m$ records give too large a gap: a maximum
# over responses is convex in the sample's means, and its bias is at most its noise, $O(m^{-1/2})$.
# The output depends on the training sample, so that estimate may be too large or too small.

# %%
n = ns[-1]
z, mean, training = kept[0.5, True, n]
a, b = mean[0][0], mean[1][0]
by_sets = [r for r in (1, 2, 4, 8, 16) if r <= sets]
estimates = {}
for private in (p for c, p in settings if c == 0.5):
    own = kept[0.5, private, n][0]
    estimates[private] = [
        np.mean([three(0.5, Saddle(*(x[:, i:i + r] for x in own)), kept[0.5, private, n][1])[1]
                 for i in range(0, sets, r)], 0) for r in by_sets]
first = Saddle(*(x[0, 0] for x in z))
truth = float(gap_at(0.5, first, a, b))
by_records = [30, 100, 300] if quick else [30, 100, 300, 1000, 3000, 10_000]
rng = np.random.default_rng(5)


def sphere(*shape: int) -> np.ndarray:
    """Points of the unit sphere in 10 dimensions."""
    x = rng.normal(size=(*shape, 10))
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


on_samples = np.array([[float(gap_at(0.5, first, a + sphere(m).mean(0) / 2,
                                     b + sphere(m).mean(0) / 2)) for _ in range(40)]
                       for m in by_records])
bias = on_samples.mean(1) - truth
print(f"n = {n}: strong gap of one output {truth:.4f}; on its training data "
      f"{float(training[0, 0]):.4f}; on fresh samples of {by_records[0]} records "
      f"{on_samples[0].mean():.4f}, of {by_records[-1]} {on_samples[-1].mean():.4f}")
assert bias[0] > 0, "a small fresh sample says too much"
assert abs(bias[-1]) < abs(bias[0]), "a larger one errs less"
assert all(e[-1].mean() < e[0].mean() for e in estimates.values()), (
    "more data sets, a smaller weak gap")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for private, rows in estimates.items():
    means = np.array([e.mean() for e in rows])
    axes[0].errorbar(by_sets, means, [2 * one_way(e) for e in rows], marker="o", markersize=4,
                     capsize=3, color="C0" if private else "C2",
                     label="ε = 1" if private else "no privacy")
    axes[0].plot(by_sets, np.array(by_sets) ** -0.5 * means[0], "k--", linewidth=1)
axes[0].plot([], [], "k--", linewidth=1, label=r"$R^{-1/2}$: all of it is bias")
axes[0].set(xscale="log", yscale="log", xlabel="data sets R for each coin", ylabel="gap",
            title=f"weak gap, c = 1/2, n = {n}")
axes[0].set_xticks(by_sets, [str(r) for r in by_sets])
axes[0].legend(fontsize=7)
spread = on_samples.std(1, ddof=1)
axes[1].plot(by_records, on_samples.mean(1), "o-", markersize=4, label="on m fresh records")
axes[1].fill_between(by_records, on_samples.mean(1) - spread, on_samples.mean(1) + spread,
                     alpha=0.3)
axes[1].axhline(truth, color="k", linewidth=1, label="population")
axes[1].axhline(float(training[0, 0]), color="C1", linewidth=1, label=f"its {n} training records")
axes[1].plot(by_records, truth + bias[0] * (np.array(by_records) / by_records[0]) ** -0.5, "k--",
             linewidth=1, label=r"population + $O(m^{-1/2})$")
axes[1].set(xscale="log", xlabel="records m", ylabel="strong gap",
            title="one output; band: one standard deviation")
axes[1].legend(fontsize=7)
plt.show()

# %% [markdown]
# ## Primal risk, and a bilinear game under three algorithms
#
# The strong gap is the sum of both players' losses. For a saddle value $F^*$, $\max_{v'} F(w, v') -
# F^*$ is the excess primal risk and $F^* - \min_{w'} F(w', v)$ the excess dual one. On the game of
# small balls of `benchmarks.rates.gaps` ($f = \langle a, w\rangle + \langle w, v\rangle -
# \langle b, v\rangle$, radius 1/2) the saddle point is $(B, -A)$ and
# $F^* = \langle A, B \rangle = 0$.

# %%
names = ["sgda, one pass"] if quick else ["sgda, one pass", "sgda, Theorem 2", "recursive"]
n, delta = (128 if quick else 1024), gaps.NUMBERS["delta"]
bars = {}


@jax.jit
@jax.vmap
@jax.vmap
def measure(z):
    """Strong gap and primal risk on the population."""
    return (rate_cases.small_gap(z),
            metrics.primal_risk(rate_cases.SMALL, z.w, rate_cases.SMALL_MEAN))


for name in names:
    algorithm, hyper = gaps.METHODS[name](n, 1.0)
    hyper = jmm.calibrate(algorithm, hyper, 1.0, delta)
    job = rate_cases.Job(algorithm, hyper, rate_cases.SMALL, rate_cases.SMALL_START,
                         rate_cases.small_sample(n), rate_cases.small_gap)
    z, training = outputs(job)
    strong, primal = map(np.asarray, measure(z))
    same = Saddle(*(np.repeat(x.mean(1, keepdims=True), sets, 1) for x in z))
    weak = np.asarray(measure(same)[0])[:, 0]  # one shape, one program
    bars[name] = [(x.mean(), 2 * one_way(x.mean(1) if x.ndim == 2 else x)) for x in (
        strong, weak, primal, strong - primal, training)]
    print(f"{name:18s} ε = {jmm.epsilon(algorithm.mechanism(hyper), delta):.4f}  "
          + "  ".join(f"{word} {m:.3f} ± {e:.3f}" for word, (m, e) in zip(
              ("strong", "weak", "primal", "dual", "training"), bars[name], strict=True)))
    assert weak.mean() <= strong.mean(), "weak <= strong"
    assert primal.min() >= -1e-6, "no risk is below the saddle value"
    assert (primal <= strong + 1e-6).all(), "excess primal risk <= strong gap"

figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
words = ("strong", "weak", "excess primal risk", "excess dual risk", "strong, on training data")
for i, word in enumerate(words):
    m, e = zip(*(bars[name][i] for name in names), strict=True)
    ax.bar(np.arange(len(names)) + 0.16 * (i - 2), m, 0.15, yerr=e, capsize=2, label=word)
ax.axhline(float(rate_cases.small_gap(rate_cases.SMALL_START)), color="grey", linewidth=1,
           label="strong, untrained")
ax.set_xticks(range(len(names)), names)
ax.set(ylabel="gap or risk",
       title=f"n = {n}, ε = 1, δ = {delta:g}, replace-one; two standard errors")
ax.legend(fontsize=7)
plt.show()

# %% [markdown]
# Weak gaps here are still plug-in estimates from few data sets: upper bounds, in expectation. A
# paper that reports a weak gap should state the number of data sets.
