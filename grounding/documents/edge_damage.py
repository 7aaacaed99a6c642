"""Files of the embedded engine that are damaged are set aside, so that all else is found.

The engine notices damage as it opens a shard, in many words: so only what may pass by itself is known by its words
(`is_passing`), and all else is damage. Nothing is deleted. What the shard held comes again from where it came from.

Files, in a collection's folder: ``damaged-<number>`` holds what was set aside of the shard that all share,
``own/<name>.damaged-<number>`` the shard of a large tenant.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from grounding.documents.edge_shard import SHARD_FILES, is_there, kept, look_at

log = structlog.get_logger()

_ASIDE = "damaged-"
_PASSING_ERRORS = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
_PASSING_WORDS = (
    "WouldBlock",
    "Vector dimension error",
    "Not existing vector name",
    *(f"(os error {number})" for number in sorted(_PASSING_ERRORS)),
    *(os.strerror(number) for number in sorted(_PASSING_ERRORS)),
)
"""Parts of what the engine says where a shard that cannot be opened now may be whole: as the system says it, that
another process uses it, or that it is of another model or version."""


def is_passing(error: BaseException) -> bool:
    """Whether what *error* tells of may be over later, and so is no damage."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_ERRORS:
        return True
    said = str(error)
    return any(words in said for words in _PASSING_WORDS)


def opened_whole(path: Path, open_at: Callable[[Path], Any]) -> Any:
    """The shared shard at *path* as *open_at* opens it, or makes it where there is none. A damaged one is set aside,
    and an empty one made. Blocking; raises what *open_at* does, and `OSError`."""
    if not is_there(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        look_at(shard := open_at(path))
    except BaseException as error:
        # Where this user may not read it, somebody has to see to all of it, and nothing is gained by an empty one.
        if is_passing(error) or _is_forbidden(error):
            raise
        _set_aside(path, error)
        return open_at(path)
    return shard


def _set_aside(path: Path, why: BaseException) -> None:
    aside = _free(path / _ASIDE)
    with kept(path):
        aside.mkdir(mode=0o700)
        for name in SHARD_FILES:  # the configuration first: without it nothing of the rest is opened
            if (path / name).exists():
                (path / name).rename(aside / name)
    _tell(path, aside, why)


def set_own_aside(collection: Path, folder: Path, why: BaseException) -> None:
    """Set aside the shard of a tenant in *folder*, which could not be opened for *why*, of the *collection* in its.
    Raises `OSError`."""
    aside = _free(folder.with_suffix(f".{_ASIDE}"))
    with kept(folder.parent):
        folder.rename(aside)
    _tell(folder, aside, why)


def _tell(folder: Path, aside: Path, why: BaseException) -> None:
    what = f"was set aside as {aside.name}, and what it held is indexed anew"
    log.warning("store.degraded", store="qdrant", why=f"the search index in {folder} is damaged ({why}): it {what}")


def is_aside(folder: Path) -> bool:
    """Whether *folder* was set aside."""
    return folder.suffix.startswith(f".{_ASIDE}")


def _is_forbidden(error: BaseException) -> bool:
    return isinstance(error, PermissionError) or os.strerror(errno.EACCES) in str(error)


def _free(path: Path) -> Path:
    number = 1
    while (one := path.with_name(f"{path.name}{number}")).exists():
        number += 1
    return one
