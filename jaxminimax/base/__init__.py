"""The ground that everything else stands on: types, checks, arithmetic on pytrees, random bits."""

from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

VERSION = "0.2.0"


def public_names(namespace: Mapping[str, Any], modules: Collection[str] = ()) -> list[str]:
    """The public names of a module, sorted.

    They are those in its `__all__`; without one, everything without an underscore that was made in
    the module or below it, but for other modules. A face calls it as

        def __dir__() -> list[str]:
            return _public_names(globals())

    Args:
      namespace: `globals()` of the module.
      modules: names of modules that belong to it all the same.

    Examples:
        >>> from jaxminimax.base import public_names
        >>> public_names({"__name__": "mine", "SIZES": (2, 3), "np": np, "_secret": 1})
        ['SIZES']
    """
    if "__all__" in namespace:
        return sorted({*namespace["__all__"], *modules})
    own = namespace["__name__"]

    def made_here(value: Any) -> bool:
        """Constants of Python's own types do not say where they were made."""
        home = getattr(value, "__module__", own)
        return not isinstance(value, ModuleType) and f"{home}.".startswith(f"{own}.")

    names = {name for name, value in namespace.items() if not name.startswith("_")
             and made_here(value)}
    return sorted(names | {*modules})
