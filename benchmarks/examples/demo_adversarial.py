"""Linear classifiers against an adversary that moves the features, as a saddle problem.

    min over ||w|| <= R, max over ||v|| <= r, of   E l(y (<w, x> + b) - <w, v>),
    l(t) = ln(1 + e^-t), y in {-1, 1}:

one shift v for all records, against each record's own label: x is seen as x - y v. For a linear
classifier that is no weaker than an adversary with a shift of its own for every record, because the
worst shift of every record is the same v = r w / ||w||. So the saddle problem is adversarial
training, its value the robust risk, with an adversary of d numbers instead of n d. It is convex in
w and quasi-concave in v (monotone in <w, v>), so by Sion's theorem it has a saddle point.

The other common shift, x + v whatever the label, is weaker, since a bias undoes what moves both
classes alike. The loss is convex in it, so it takes a penalty; `robust_regression` is its kin with
squares.

Source: Madry et al., "Towards deep learning models resistant to adversarial attacks", ICLR 2018,
for linear models; the closed form as in Xu, Caramanis and Mannor, "Robustness and regularization of
support vector machines", JMLR 2009.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxminimax.base import checks
from jaxminimax.base.types import Labels, Problem, Saddle, saddle_operator

SHIFTS = ("against_label", "common")
Linear = dict[str, jax.Array]  # weight [d], bias []


def linear_start(dim: int) -> Saddle:
    """Weight, bias and shift zero but for a tiny weight: at 0 no direction is the worst."""
    weight = jnp.full(dim, 1e-3 / dim**0.5)
    return Saddle({"weight": weight, "bias": jnp.zeros(())}, jnp.zeros(dim))


def adversarial(*, radius: Saddle, shift: str = "against_label", penalty: float = 0.0,
                dual: str = "ascent") -> Problem:
    """Logistic classification against the worst shift of the features.

    Data are pairs (x, y), x `[n, d]` and y `[n]` in {-1, 1}. A record's operator has norm at most
    (1 + (||x|| + r)^2)^(1/2) for w and ||w|| for v: give v the clip norm R, which never clips.

    Args:
      radius: R, of a ball that holds weight and bias together, and r; r = 0 is logistic
        regression.
      shift: "against_label" (as strong as any adversary) or "common".
      penalty: rho, weight of -(rho / 2) ||v||^2, a public term; for a common shift at least R^2/4,
        which makes the problem concave in v.
      dual: "ascent": v moves by its own released gradient. "best_response": v = r w / ||w||, its
        maximiser given the private w; give v no clip norm (`clip=Saddle(c, None)`), so that the
        whole budget goes to w. Against labels and without penalty only.

    Raises:
      ValueError: for numbers out of range, or combinations that are not defined.
    """
    checks.one_of("shift", shift, SHIFTS)
    checks.one_of("dual", dual, ("ascent", "best_response"))
    checks.number("radius.w", radius.w, low=0.0)
    checks.number("radius.v", radius.v, low=-1e-300)
    checks.number("penalty", penalty, low=0.0, closed=True)
    common = shift == "common"
    if common and penalty < radius.w**2 / 4:
        raise ValueError(f"penalty must be at least radius.w**2 / 4 = {radius.w**2 / 4:g}, got "
                         f"{penalty!r}: otherwise the problem is not concave in a common shift.")
    if dual == "best_response" and (common or penalty):
        raise ValueError("dual='best_response' is for shifts against labels without penalty: use "
                         "dual='ascent'.")

    def loss(w: Any, v: Any, record: Any) -> Any:
        x, y = record
        y = jnp.asarray(y, x.dtype)
        margin = y * (x @ w["weight"] + w["bias"])
        return jax.nn.softplus((-y if common else 1.0) * (v @ w["weight"]) - margin)

    def worst(w: Any) -> Any:
        norm = jnp.linalg.norm(w["weight"])
        return w["weight"] * (radius.v / jnp.where(norm > 0, norm, 1.0))

    def project(z: Any) -> Any:
        w = optax.projections.projection_l2_ball(z.w, radius.w)
        if dual == "best_response":
            return Saddle(w, worst(w))
        # not optax's projection, whose scale is 0 / 0 for a ball that is a point
        norm = jnp.linalg.norm(z.v)
        return Saddle(w, z.v * jnp.minimum(1.0, radius.v / jnp.where(norm > 0, norm, 1.0)))

    def public(z: Any) -> Any:
        return Saddle(jax.tree.map(jnp.zeros_like, z.w), penalty * z.v)

    def value(z: Any, data: Any) -> Any:
        mean = jnp.mean(jax.vmap(loss, (None, None, 0))(z.w, z.v, data))
        return mean - penalty / 2 * (z.v @ z.v)

    best_v = None if common or penalty else lambda w, data: worst(w)
    return Problem(operator=saddle_operator(loss), public=public if penalty else None,
                   project=project, value=value, best_response=Saddle(None, best_v),
                   labels=Labels((-1, 1)))


def robust_accuracy(w: Linear, data: tuple[jax.Array, jax.Array], radius: float) -> jax.Array:
    """Reads the data; not private. Share of records that no shift of that norm makes wrong.

    Every record against its own worst shift, -y r w / ||w||: y (<w, x> + b) > r ||w||.

    Args:
      w: weight `[d]` and bias.
      data: x `[n, d]`, y `[n]` in {-1, 1}.
      radius: r, at least 0 [feature units].
    """
    x, y = data
    margin = y * (x @ w["weight"] + w["bias"])
    return jnp.mean((margin > radius * jnp.linalg.norm(w["weight"])).astype(x.dtype))
