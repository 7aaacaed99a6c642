"""aiogram, imported without building what is not used.

Its import asks pydantic to build each of some 350 types of the Bot API, one after the other, which is four fifths of
its time (2.1 of 2.7 s of processor where this was measured). Asked for later, the same builds happen when a type is
first used, and most never are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, List, Literal, Optional, Union  # noqa: UP035 - what aiogram's annotations name

from pydantic import BaseModel

_Rebuild = Callable[..., bool | None]
_rebuild: _Rebuild = BaseModel.model_rebuild.__func__  # type: ignore[attr-defined]  # a bound class method has one


def load() -> None:
    """Import aiogram, and build what each update and reply uses. Without effect once it is imported.

    Call it in a thread, before anything of this package that needs aiogram is imported; without it all works as well,
    only later.
    """
    if "aiogram" in sys.modules:
        return
    BaseModel.model_rebuild = classmethod(_not_aiograms)  # type: ignore[method-assign, assignment]
    try:
        from aiogram import methods, types
    finally:
        BaseModel.model_rebuild = classmethod(_rebuild)  # type: ignore[method-assign, assignment]
    _build_on_demand()
    used = (types.Update, types.Message, types.MessageEntity, methods.SendMessage, methods.EditMessageText)
    for model in used:
        model.model_rebuild()


def _not_aiograms(cls: type[BaseModel], /, *, _parent_namespace_depth: int = 2, **options: Any) -> bool | None:
    if cls.__module__.startswith("aiogram."):
        return None
    return _rebuild(cls, _parent_namespace_depth=_parent_namespace_depth + 1, **options)


def _build_on_demand() -> None:
    """Pydantic builds a type that is not built when it is first used; here it learns the names that the types use."""
    from aiogram import types
    from aiogram.client.default import Default
    from aiogram.methods.base import Response, TelegramMethod
    from aiogram.types.base import TelegramObject

    names: dict[str, Any] = {name: getattr(types, name) for name in types.__all__}
    names |= {"List": List, "Optional": Optional, "Union": Union, "Literal": Literal, "Default": Default}  # noqa: UP006

    def rebuild(cls: type[BaseModel], /, **options: Any) -> bool | None:
        return _rebuild(cls, **({"_types_namespace": names} | options))

    for base in (TelegramObject, TelegramMethod, Response):
        base.model_rebuild = classmethod(rebuild)  # type: ignore[method-assign, assignment]
