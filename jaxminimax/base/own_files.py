"""Folders and files that only this user may write, changed by one process at a time.

The folder of a run holds its key and its releases. JAX's folder of compiled programs, which
`keep_programs` makes, holds code that a later process executes. Another user who could write there
would know the noise, or choose the code. A file is written under another name, flushed to the disk
and then renamed, so that a crash or a full disk leaves the former content or the new one. Locks are
the operating system's, which releases them whenever a process ends; network file systems do not
promise them. Owners and modes are not checked on systems without them, such as Windows.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def make(folder: pathlib.Path, mode: int = 0o700) -> None:
    """Makes a folder and its missing parents, and checks it and everything in it.

    It also checks the parent folder, and the folder that holds the topmost new one.

    Args:
      folder: a folder of this user alone; others may read it if it exists and allows that.
      mode: the mode of new folders.

    Raises:
      ValueError: naming the folder or file that another user owns or may write to.
      OSError: if it cannot be made.
    """
    check_parent(folder.absolute().parent)
    for ancestor in (*reversed(folder.parents), folder):
        if not ancestor.is_dir():
            check_parent(ancestor.absolute().parent)
            ancestor.mkdir(mode, exist_ok=True)
            check(ancestor)
    check(folder)
    closed = not folder.lstat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):  # another process is at work
                check(pathlib.Path(place, name), closed=closed)


def check(path: str | os.PathLike[str], status: os.stat_result | None = None, *,
          closed: bool = False, secret: bool = False) -> None:
    """Refuses a link, and a file or folder that another user owns or may write to.

    Args:
      path: the path of a file or folder.
      status: its `os.lstat`; None to read it now.
      closed: whether it lies in a folder that nobody else may enter.
      secret: whether it is also refused if others may read it.

    Raises:
      ValueError: naming the file or folder, and the fix.
    """
    status = os.lstat(path) if status is None else status
    if stat.S_ISLNK(status.st_mode):
        raise ValueError(f"{path} is a link, which may lead to what is not yours: give the folder "
                         "itself, without links in it, or one that does not exist yet.")
    if sys.platform == "win32":
        return
    if status.st_uid != os.getuid():
        raise ValueError(f"{path} belongs to another user, number {status.st_uid}, who could learn "
                         "or choose what is secret: give a folder that does not exist yet.")
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not closed:
        raise ValueError(f"{path} can be written by other users (mode {mode:o}), who could learn "
                         "or choose what is secret: give a folder that does not exist yet; or, if "
                         "nobody else has written to this one, remove their right to do so "
                         "(chmod -R go-w).")
    if mode & 0o077 and secret:
        raise ValueError(f"{path} can be read by other users (mode {mode:o}), who could subtract "
                         "the noise: give a folder that does not exist yet; or, if nobody else "
                         "has read this file, remove their right to do so (chmod go-rwx).")


def check_parent(folder: pathlib.Path) -> None:
    """Refuses a folder in which any other user could put another folder in the place of ours.

    In a folder with the sticky bit, such as /tmp, only its owner and the owner of the other folder
    can. Members of a group that may write to it are trusted, because some systems give every user a
    group.

    Args:
      folder: a folder, which may be missing or a link.

    Raises:
      ValueError: naming it, and the fix.
    """
    if sys.platform == "win32" or not folder.exists():
        return
    status = os.stat(folder)
    if status.st_uid not in (0, os.getuid()):
        raise ValueError(f"{folder} belongs to another user, number {status.st_uid}, who could "
                         "replace what is in it: give a folder within one of your own.")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ValueError(f"{folder} can be written by other users (mode "
                         f"{stat.S_IMODE(status.st_mode):o}), who could replace what is in it: "
                         "give a folder within one of your own, or remove their right to do so "
                         "(chmod o-w).")


def read(path: str | os.PathLike[str], *, secret: bool = False) -> str:
    """Returns the text of a file, which is refused as by `read_bytes`."""
    return read_bytes(path, secret=secret).decode()


def read_bytes(path: str | os.PathLike[str], *, secret: bool = False) -> bytes:
    """Returns the content of a file that nobody else owns or may write; nor read, if secret.

    Raises:
      ValueError: for any other file.
    """
    try:
        handle = os.open(path, os.O_RDONLY | _NO_LINKS)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    with open(handle, "rb") as file:
        check(path, os.fstat(handle), secret=secret)
        return file.read()


def write(path: str | os.PathLike[str], content: str, *, mode: int = 0o666,
          new: bool = False) -> None:
    """Replaces the content of a file; returns when it is on disk.

    Args:
      path: the path of the file.
      content: text, written as UTF-8.
      mode: the mode of the file, less the umask.
      new: whether the file must not exist yet.

    Raises:
      FileExistsError: for a new file that exists.
      OSError: if it cannot be written; its content is then unchanged.
    """
    temporary = _temporary_path(path)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(handle, "wb") as file:
            file.write(content.encode())
            file.flush()
            os.fsync(file.fileno())
        (os.link if new else os.replace)(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
    if sys.platform != "win32":  # the name, too
        folder = os.open(os.path.dirname(temporary) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def closed_to_writing() -> Iterator[None]:
    """Keeps other users from writing to files that any thread of this process makes meanwhile."""
    umask = os.umask(0o077)  # there is no call that only reads it
    os.umask(umask | stat.S_IWGRP | stat.S_IWOTH)
    try:
        yield
    finally:
        os.umask(umask)


def remove(folder: str | os.PathLike[str]) -> None:
    """Removes a folder, and renames it first, so that its path is free at once."""
    ended = _temporary_path(folder)
    os.rename(folder, ended)
    shutil.rmtree(ended)


def _temporary_path(path: str | os.PathLike[str]) -> str:
    """The path of a file or folder that is being written or removed, next to its own."""
    return f"{os.fspath(path)}.{os.getpid()}-{secrets.token_hex(8)}"


@contextlib.contextmanager
def locked(target: str | os.PathLike[str], wait: float = 0.0) -> Iterator[None]:
    """Holds the lock of a file or folder, which no other process then has.

    Args:
      target: a folder, with the lock inside, or a file, with the lock next to it.
      wait: seconds to wait for another process.

    Raises:
      ValueError: naming the process that has the lock.
      OSError: if the file of the lock cannot be made.
    """
    folder, name = (target, "") if os.path.isdir(target) else os.path.split(os.path.abspath(target))
    path = os.path.join(folder, f"{name}.lock" if name else "lock")
    end = time.monotonic() + wait
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666)
        try:
            free = _lock(handle)
            if free and is_at(handle, path):  # else its last holder removed it
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                if name:
                    sweep(target)
                yield
                return
            if not free and time.monotonic() >= end:
                raise ValueError(f"{os.fspath(target)} is locked by another process"
                                 f"{_holder(path)}: wait for it to end, or end it, and begin anew.")
        finally:
            os.close(handle)  # and with it the lock
        time.sleep(0.02)  # seconds between two attempts to lock


def sweep(path: str | os.PathLike[str]) -> None:
    """Removes temporary files and folders that ended processes left for a file or folder.

    Args:
      path: the file or folder that they were written for; no other process writes it now.
    """
    folder, name = os.path.split(os.path.abspath(path))
    for entry in os.listdir(folder):
        # as `_temporary_path` names them
        if entry.startswith(name) and re.fullmatch(r"\.\d+-[0-9a-f]{16}", entry[len(name):]):
            leftover = os.path.join(folder, entry)
            with contextlib.suppress(OSError):
                shutil.rmtree(leftover) if os.path.isdir(leftover) else os.remove(leftover)


def is_at(handle: int, path: str | os.PathLike[str]) -> bool:
    """Returns True if an open file or folder still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> bool:
    """Takes the lock, if nobody has it."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _holder(path: str) -> str:
    """Describes the process that has the lock, for a message."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return f", number {number}" if (number := file.read(20)).isdigit() else ""
    return ""


def keep_programs() -> pathlib.Path | None:
    """Makes JAX keep compiled programs, in `jaxminimax/programs` of the user's folder for caches.

    A later process loads the programs of an earlier one. A program contains the values that it
    closes over. Runs of the library take data and keys as arguments, so that neither is in it; a
    user's loss may close over anything. So the folder is for the user alone.

    Commands call this, because they own their process; an import does not. JAX's own settings come
    first: `JAX_COMPILATION_CACHE_DIR` is left as it is, and `JAX_ENABLE_COMPILATION_CACHE=false`
    switches all of it off.

    Returns:
      The folder; None, with nothing set, if JAX's own settings decide, or if the folder is not, or
      cannot be made, the user's alone.
    """
    import jax

    allowed = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    if not allowed or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    folder = _program_folder()
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # small ones add up
    return folder


def _program_folder() -> pathlib.Path | None:
    """Returns the folder, made if needed; None if others own or could write any part of it.

    A user who may write to a folder above it could rename it and put another one in its place.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if sys.platform == "win32":  # no owners and modes to check
        return None
    try:
        parent = pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / ".cache"
        folder = parent / "jaxminimax" / "programs"
        make(folder)
        for ancestor in (folder.parent, parent):
            check(ancestor)
    except (OSError, RuntimeError, ValueError):  # no home; another user's
        return None
    return folder
