"""Immutable records.

`overlay.enable()` runs in every process of a job, also in those that never train. `dataclasses` and
`typing` cost more to import than all the rest of the engine (they pull `inspect` and `re`), so this module
has the few things that the engine needs of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar

    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_options: object) -> Callable[[type], type]:
        """Stand in for the typing decorator, which only a type checker reads."""
        return lambda cls: cls


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """Base of the engine's value objects: keyword-only, frozen, comparable, printable.

    A subclass names its fields as annotations, with defaults as on a dataclass.
    """

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        own = cls.__dict__.get("__annotations__", {})  # noqa: RUF063 -- `inspect` is what this module saves
        own = tuple(name for name in own if not name.startswith("_"))
        cls._fields = cls._fields + own

    def __init__(self, **values: Any) -> None:
        fields = self._fields
        own = self.__dict__
        for name in fields:
            if name in values:
                own[name] = values.pop(name)
            elif not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__}() is missing the field {name!r}")
            else:
                own[name] = getattr(type(self), name)
        if values:
            raise TypeError(f"{type(self).__name__}() has no field {', '.join(map(repr, sorted(values)))}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    __delattr__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(self.__dict__[name] for name in self._fields)))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._fields)
        return f"{type(self).__name__}({inside})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes` made."""
        return type(self)(**{**self.__dict__, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data that `json` can write (tuples become lists, records dicts)."""
        return {name: _plain(self.__dict__[name]) for name in self._fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return getattr(value, "__qualname__", None) or str(value)
