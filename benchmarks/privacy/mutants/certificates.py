"""Planted bugs of certificates from records held out, and what finds them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.privacy.attacks import certificate
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax.drivers import certificates
from jaxminimax.mechanism import held_out as described
from jaxminimax.releases import groups, held_out, noisy_sums

AIMS: dict[str, tuple[Any, str]] = {
    "noise on a certificate": (noisy_sums, "add_noise_to_point"),
    "noise on losses": (noisy_sums, "add_noise_to_losses"),
    "clip of held-out operators": (held_out, "clipped_sum"),
    "clip of held-out losses": (groups, "_clipped"),
    "distance": (described, "length"),
    "largest mean": (held_out, "_largest_mean"),
    "charge of a certificate": (certificates, "_together"),
    "width": (certificates, "bound_gap"),
}
GAP = functools.partial(certificate.signal, "strong_gap")
RISK = functools.partial(certificate.signal, "primal_risk")
WORST = functools.partial(certificate.signal, "worst_group")


# --- the plants ---


def half_the_noise(add: Any) -> Any:
    return lambda key, point, length, *args: add(key, point, length / 2, *args)


def half_the_noise_on_losses(add: Any) -> Any:
    return lambda key, losses, bound, z, *args: add(key, losses, bound, z / 2, *args)


def not_clipped(_: Any) -> Any:
    def made(operator: Any, clip: Saddle, **how: Any) -> Any:
        return lambda z, data: jax.tree.map(
            lambda x: jnp.sum(x, 0), jax.vmap(operator, (None, 0))(z, data))

    return made


def of_half_the_diameter(length: Any) -> Any:
    """At the edge of the set the distance is the diameter."""
    return lambda query, radius: length(query, radius / 2)


def one_of_two_halves(of: Any) -> Any:
    """The gap of player w alone."""
    def changed(problem: Any, *args: Any) -> Any:
        def operator(z: Saddle, x: Any) -> Saddle:
            g = problem.operator(z, x)
            return Saddle(g.w, jax.tree.map(jnp.zeros_like, g.v))

        return of(problem._replace(operator=operator), *args)

    return changed


def not_charged(_: Any) -> Any:
    return lambda training, mechanism, held, read: _Free(parts=(training, mechanism))


class _Free(jmm.Parallel):
    """Charges its first part alone."""

    def charges(self, neighbours: str) -> Any:
        return self.parts[0].charges(neighbours)


def twice_beta(bound: Any) -> Any:
    """Either half of beta counts as all of it."""
    return lambda released, mechanism, radius, beta: bound(released, mechanism, radius, 2 * beta)


_SIGNAL = "signal over the charged one"
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("noise on a certified gap halved", "standard deviation", "noise on a certificate",
     half_the_noise, GAP, _SIGNAL),
    ("noise on a certified worst group halved", "standard deviation", "noise on losses",
     half_the_noise_on_losses, WORST, _SIGNAL),
    ("operators held out not clipped", "sensitivity of a certificate", "clip of held-out operators",
     not_clipped, RISK, _SIGNAL),
    ("losses held out not clipped", "sensitivity of a certificate", "clip of held-out losses",
     lambda _: lambda each, bound: each, WORST, _SIGNAL),
    ("half the diameter for the distance of a certified point", "sensitivity of a certificate",
     "distance", of_half_the_diameter, GAP, _SIGNAL),
    ("one of two halves of a gap certified", "coverage", "largest mean", one_of_two_halves,
     certificate.below, "share of certificates below the gap"),
    ("certificate not charged", "accountant: records held out", "charge of a certificate",
     not_charged, certificate.charged, "epsilon of the certificate over the stated one"),
    ("beta for each of two events", "coverage", "width", twice_beta, certificate.narrow,
     "least bound by the formula over the printed one"),
)
