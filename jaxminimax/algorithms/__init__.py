"""Private algorithms, one file each: `Hyper`, `State`, `mechanism`, `init`, `update`, `example`.

A new algorithm is a file here and its name in `__all__`. The package, the command line and
the benchmarks read `ALGORITHMS`, and call the `example` of each to make a `Hyper`,

    example(query, iterations) -> Hyper

the smallest legal settings around a description of the class that `query` is annotated with. An
algorithm that cuts the data also takes the number of `parts`. One that also releases losses takes
their noise multiplier, `laplace`, and the kind of noise, `losses_noise`, if there is a choice.
"""

import importlib
import typing

__all__ = ["active_groups", "balanced_groups", "extragradient", "ftrl", "gda", "group_oco",
           "group_sgd", "optimistic", "phased_erm", "proximal", "recursive", "recursive_inner",
           "recursive_sgda", "sgda"]

ALGORITHMS: dict[str, typing.Any] = {name: importlib.import_module(f"{__name__}.{name}")
                                     for name in __all__}
# public names of every algorithm, and of single ones; all others are for modules of this folder
for _name, _module in ALGORITHMS.items():
    _module.__all__ = [x for x in (
        "Hyper", "State", "example", "init", "mechanism", "plan", "plan_variants", "update",
        *{"ftrl": ("observe_record",), "gda": ("safe_offset",), "group_oco": ("releases",),
          "group_sgd": ("gradient_step", "weight_step"), "proximal": ("certified",),
          "phased_erm": ("calibrated_eta", "certified", "regularised"),
          "recursive": ("certified",), "sgda": ("theorem2_step", "theorem3_step"),
          }.get(_name, ())) if hasattr(_module, x)]


def described_by(algorithm: typing.Any) -> type:
    """The class of the descriptions that an algorithm's `example` takes."""
    kind: type = typing.get_type_hints(algorithm.example)["query"]
    return kind


def takes(algorithm: typing.Any, name: str) -> bool:
    """Returns True if an algorithm's `example` takes the argument `name`."""
    return name in typing.get_type_hints(algorithm.example)
