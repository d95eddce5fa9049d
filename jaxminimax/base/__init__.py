"""The lowest layer of the package: types, checks, arithmetic on pytrees and random bits."""

from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

VERSION = "0.1.0"


def public_names(namespace: Mapping[str, Any], modules: Collection[str] = ()) -> list[str]:
    """The public names of a module, sorted.

    They are the names in its `__all__`. Without one, they are all names without an underscore that
    were defined in the module or below it, except other modules. `face` makes it the `__dir__` of
    modules.

    Args:
      namespace: `globals()` of the module.
      modules: names of modules that are public in it too.

    Examples:
        >>> from jaxminimax.base import public_names
        >>> public_names({"__name__": "mine", "SIZES": (2, 3), "np": np, "_secret": 1})
        ['SIZES']
    """
    if "__all__" in namespace:
        return sorted({*namespace["__all__"], *modules})
    module_name = namespace["__name__"]

    def made_here(value: Any) -> bool:
        """Returns True for objects defined here, and for constants, which hold no module name."""
        home = getattr(value, "__module__", module_name)
        return not isinstance(value, ModuleType) and f"{home}.".startswith(f"{module_name}.")

    names = {name for name, value in namespace.items() if not name.startswith("_")
             and made_here(value)}
    return sorted(names | {*modules})
