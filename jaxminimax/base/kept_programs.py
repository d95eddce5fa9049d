"""Compiled programs on disk, for commands: a later process loads what an earlier one compiled.

A program contains what it closes over. Runs of the library take data and keys as arguments, so that
neither is in it; a user's loss may close over anything. So the folder is the user's alone, also
because whoever writes there decides what a later process executes.
"""

import os
import pathlib
import sys

import jax

from jaxminimax.base import own_files

_LEAST_SECONDS = 0.3  # of compiling what is worth a file


def keep() -> pathlib.Path | None:
    """Has JAX keep compiled programs, in `jaxminimax/programs` of the user's folder for caches.

    For commands, which own their process; an import does not. JAX's own settings come first: a
    `JAX_COMPILATION_CACHE_DIR` is left as it is, and `JAX_ENABLE_COMPILATION_CACHE=false` switches
    all of it off.

    Returns:
      The folder; None, with nothing set, if JAX's own settings decide, or if the folder is not, or
      cannot be made, the user's alone.
    """
    allowed = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    if not allowed or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    folder = _own_folder()
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    return folder


def _own_folder() -> pathlib.Path | None:
    """The folder, made if it has to be; None if others own or could write any part of it.

    A user who may write to a folder above it could rename it and put another one in its place.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if sys.platform == "win32":  # no owners and modes to check
        return None
    try:
        parent = pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / ".cache"
        folder = parent / "jaxminimax" / "programs"
        own_files.make(folder)
        for one in (folder.parent, parent):
            own_files.check(one)
    except (OSError, RuntimeError, ValueError):  # no home; another user's
        return None
    return folder
