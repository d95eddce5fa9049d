"""The descriptions in an algorithm's settings, whatever its fields are called."""

from typing import Any

import jax

from jaxminimax.mechanism.description import Description, OneRelease, with_noise


def _describes(x: Any) -> bool:
    return isinstance(x, Description | OneRelease)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def descriptions(hyper: Any) -> dict[str, Any]:
    """The descriptions and single releases in a `Hyper`, by their paths in it."""
    found = jax.tree_util.tree_leaves_with_path(hyper, is_leaf=_describes)
    return {_name(path): x for path, x in found if _describes(x)}


def with_noise_of_all(hyper: Any, scale: float, **own: float) -> Any:
    """`hyper` with the noise multipliers of all of them (1 where not set) times `scale`.

    Args:
      hyper: an algorithm's.
      scale: factor.
      own: another factor for the description of that name.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, x: with_noise(x, own.get(_name(path), scale)) if _describes(x) else x,
        hyper, is_leaf=_describes)


def check_charged(algorithm: Any, hyper: Any) -> None:
    """Refuses settings with a description that the algorithm's mechanism does not have.

    Raises:
      ValueError: naming a description whose noise does not change the noise that is charged.
    """
    def charged(**own: float) -> list[float]:
        made = algorithm.mechanism(with_noise_of_all(hyper, 1.0, **own))
        return [leaf.multiplier() for leaf in made.flattened()]

    names, plain = descriptions(hyper), charged()
    if not names:
        raise ValueError(f"{type(hyper).__qualname__} holds no description whose noise could be "
                         "set: give it a Query, or another of jaxminimax.mechanism, as a field "
                         "that is not static.")
    for name in names:
        if 0 not in plain and charged(**{name: 2.0}) == plain:
            raise ValueError(f"hyper.{name} is not charged: its noise changes nothing in "
                             "algorithm.mechanism(hyper). Put it into mechanism, or leave it out "
                             "of hyper.")

