"""What the arithmetic must do for the guarantee to hold: NaN and infinities are told from numbers.

A record whose operator is not finite counts as absent. Compilers that are told there are no NaN
drop the test for them, and additions in another order than written lose what compensated sums keep;
under `jax.debug_nans` a record decides whether the run ends. Options of a single compilation
(`jax.jit(..., compiler_options=...)`) cannot be seen from here: they are assumed to be sound.
"""

import os

import jax

_FAST = ("xla_cpu_enable_fast_math", "xla_cpu_enable_fast_min_max", "xla_gpu_enable_fast_min_max",
         "xla_enable_fast_math")


def _flags() -> list[str]:
    """What XLA is told by the environment: the flags, or a file of them."""
    given = os.environ.get("XLA_FLAGS", "").strip()
    if given and not given.startswith("-") and os.path.isfile(given):
        with open(given) as file:
            given = file.read()
    return given.split()


def check() -> None:
    """Refuses to release anything with arithmetic that treats NaN or infinity specially.

    Raises:
      ValueError: naming the option that is on.
    """
    for name in ("debug_nans", "debug_infs"):
        if getattr(jax, name).value:
            raise ValueError(f"jax_{name} is on: a record whose operator is not finite would end "
                             "the run instead of counting as absent, and tell that it is there. "
                             "Switch it off; debug the operator on invented records.")
    set_to: dict[str, str] = {}
    for flag in _flags():
        name, _, value = flag.lstrip("-").partition("=")
        set_to[name] = value.lower()
    for name in _FAST:
        if set_to.get(name, "false") not in ("false", "0"):
            raise ValueError(f"XLA_FLAGS has --{name}: compiled with it, a record that is not "
                             "finite need not count as absent, and sums need not be as exact as "
                             "the guarantee asks. Take it out.")
