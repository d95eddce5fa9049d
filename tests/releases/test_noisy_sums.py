"""Sums with noise: what the compiled program of a round is made of."""

import re

import jax
import jax.numpy as jnp
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.drivers import runs

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
