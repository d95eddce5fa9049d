"""Signs of public terms: a wrong one is named, and those of the library are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.examples import demo_gan
from jaxminimax import Saddle
from jaxminimax.public_signs import warnings_of

P = jmm.problems
GAME = P.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
START = Saddle(jnp.ones(3), jnp.ones(3))


def regularised(w, v):
    return GAME._replace(public=lambda z: Saddle(w * z.w, v * z.v))


def coupled(sign):
    """Terms that are bent in both players, as those of a GAN with a public generator."""
    def terms(z):
        return jnp.tanh(z.w.sum()) * jnp.cos(z.v).sum()

    return GAME._replace(public=lambda z: (lambda g: Saddle(g.w, sign * g.v))(jax.grad(terms)(z)))


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "words"), [
    (GAME, []), (regularised(0.1, 0.2), []), (coupled(-1.0), []),
    (regularised(0.0, -0.2), ["drives v away"]),
    (regularised(-0.1, -0.2), ["drives w away", "drives v away"]),
    (coupled(1.0), ["One player's part"])])
def test_a_wrong_sign_of_a_player_is_named(problem, words):
    found = warnings_of(problem, START)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def of_library():
    theta = jnp.zeros(3)
    shares = np.full((2, 2), 0.25)
    yield P.auc(P.linear_scorer, prior=0.3, radius=Saddle(5.0, 5.0)), P.auc_start(theta)
    for divergence in ("cvar", "chi_square"):
        yield (P.reweighted(P.squared_loss, divergence=divergence, level=0.5, radius=2.0,
                            bound=1.0), P.reweighted_start(theta, divergence))
    yield (P.partial_auc(P.linear_scorer, prior=0.3, max_fpr=0.3, penalty=0.1,
                        radius=Saddle(5.0, 5.0)),
           P.partial_auc_start(theta))
    yield (P.parity(P.linear_scorer, shares=shares.sum(0), weight=1.0),
           P.parity_start(theta, shares=shares.sum(0)))
    yield P.fermi(P.linear_scorer, shares=shares.sum(0), weight=1.0), P.fermi_start(
        theta, shares=shares.sum(0))
    bank = demo_gan.latents(jax.random.key(2), 8, 3)
    yield (demo_gan.wgan(lambda w, x: jnp.tanh(w @ x), lambda v, xi: v + xi, bank, limit=1.0),
           Saddle(jnp.ones(3), jnp.ones(3)))


@pytest.mark.nightly
def test_the_public_terms_of_the_library_have_no_warning():
    for problem, start in of_library():
        assert warnings_of(problem, start) == ()


def test_check_reports_it():
    query = jmm.Query(clip=Saddle(1.0, 1.0), population=10)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=5)
    report = jmm.check(regularised(0.1, -0.1), START, (jnp.ones((10, 3)),) * 2, hyper,
                       measure=False)
    assert any("drives v away" in text for text in report.warnings)
