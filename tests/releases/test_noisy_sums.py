"""Sums with noise: what the compiled program of a round is made of."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.drivers import runs
from jaxminimax.gradients import summation

N, BATCH = 20_000, 256


def linear(w, x):
    return x @ w["k"]


def mlp(w, x):
    return jax.nn.relu(x @ w["W"] + w["b"]) @ w["k"]


def cnn(w, x):
    image = x.reshape(1, 8, 8, 1)
    for name in ("K", "L"):
        image = jax.nn.relu(jax.lax.conv_general_dilated(
            image, w[name], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return image.reshape(-1) @ w["k"]


MODELS = {
    linear: (22, {"k": (22,)}),
    mlp: (30, {"W": (30, 200), "b": (200,), "k": (200,)}),
    cnn: (64, {"K": (3, 3, 1, 8), "L": (3, 3, 8, 16), "k": (256,)}),
}


@pytest.mark.nightly
@pytest.mark.optimised
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize(("sampling", "most"), [
    (jmm.Poisson(rate=BATCH / N), 3), (jmm.FixedSize(batch=BATCH, replacement=True), 2)],
    ids=["Poisson", "replacement"])
def test_a_round_has_two_conditionals_and_one_for_rare_samples(model, sampling, most):
    """Numbers in doubt, sums that need care and samples that are drawn again have one each.

    Each may be a trip to the host on an accelerator.
    """
    features, shapes = MODELS[model]
    start = jmm.problems.auc_start({k: jnp.zeros(shape) for k, shape in shapes.items()})
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(1.0, 1.0), population=N,
                      sampling=sampling)
    settings = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=10)
    data = (jnp.zeros((N, features)), jnp.zeros(N))
    problem = jmm.problems.auc(model, prior=0.3, radius=Saddle(2.0, 2.0))
    program = runs._compiled.lower(jax.random.key(0), start, data, settings, jmm.sgda,
                                   problem, runs.nothing).compile()
    lines = {}  # of each computation, by its name
    for part in re.split(r"\n\n+", program.as_text()):
        lines[re.match(r"(?:ENTRY )?%?([\w.\-]*)", part).group(1)] = part
    rounds = max((lines[name] for name in re.findall(r" while\(.* body=%?([\w.\-]+)",
                                                     program.as_text())), key=len)
    assert rounds.count("= ") > 20
    assert len(re.findall(r" conditional\(", rounds)) <= most


@pytest.mark.parametrize(("exact", "bands"), [
    (True, 1), *(pytest.param(*x, marks=pytest.mark.slow) for x in (
        (False, 1), (True, 3), (False, 3)))])
def test_many_small_leaves_are_released_as_they_are_one_by_one(monkeypatch, exact, bands):
    """To the last bit, where all examples are within the clip norm: noise has its numbers, too."""
    z = Saddle({"a": [jnp.zeros((2, 2), jnp.float32), jnp.zeros((), jnp.float32)] * 5},
               jnp.zeros(3, jnp.float32))
    problem = jmm.Problem(jmm.types.with_strategy(
        lambda z, x: jax.tree.map(lambda a: a + x.astype(a.dtype), z), "microbatch", 4))
    query = jmm.Query(clip=Saddle(20.0, 30.0), noise_multiplier=Saddle(0.3, 0.1), population=10,
                      exact=exact, bands=bands, sampling=jmm.Disjoint(batch=5))
    data = jnp.linspace(-1.0, 1.0, 10)

    def released():
        mechanism = jmm.mechanism.Repeat(query=query, times=4)
        return jax.jit(lambda spent: jmm.release(jax.random.key(4), mechanism, spent, problem, z,
                                                 data))(jnp.int32(2))

    together = released()
    assert jax.tree.structure(together) == jax.tree.structure(z)
    monkeypatch.setattr(summation, "_MANY", 99)
    apart = released()
    jax.tree.map(np.testing.assert_array_equal, together, apart)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(together))
