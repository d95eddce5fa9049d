"""Saddle problems: a loss, a projection and, where it exists, the exact solution."""

from typing import NoReturn

from jaxminimax.base import public_names as _public_names
from jaxminimax.base.identity import People as People
from jaxminimax.problems._auc import *
from jaxminimax.problems._fair import *
from jaxminimax.problems._games import *
from jaxminimax.problems._groups import *
from jaxminimax.problems._held_out import *
from jaxminimax.problems._ranking import *
from jaxminimax.problems._robust import *
from jaxminimax.problems._vi import *

_EXAMPLES = {"gan": "FreshLatents cosine_discriminator generator_init image_generator latents "
                    "limited mlp_generator wgan",
             "mdp": "mdp mdp_policy mdp_start",
             "games": "group_means_optimum kinked_game robust_regression",
             "adversarial": "adversarial linear_start robust_accuracy"}


def __getattr__(name: str) -> NoReturn:
    """Raises an AttributeError, which names the file of a problem that became an example."""
    for file, names in _EXAMPLES.items():
        if name in names.split():
            raise AttributeError(f"problems.{name} is an example of the repository since 0.2: "
                                 f"benchmarks/examples/demo_{file}.py.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return _public_names(globals())
