"""Reads a record from plain data that somebody else wrote: a ledger, or a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

from overlay.model.record import Record


def record_of(kind: type[Record], data: Any, names: Mapping[str, Any] | None = None) -> Any:
    """Return a record of the keys that it has a field for. `names`: the types that its annotations name.

    Raises `TypeError`, which names the key and its value, for what has another type, and for what is missing.
    """
    return _value(kind, data, "", {"ClassVar": ClassVar, "Mapping": Mapping, **(names or {})})


def _value(kind: Any, value: Any, key: str, names: dict[str, Any]) -> Any:
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return value if type(value) in inside else _value(inside[0], value, key, names)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(inside[0], item, f"{key}[{at}]", names) for at, item in enumerate(value))
    if isinstance(value, dict):
        if origin in (dict, Mapping):
            return {name: _value(inside[1], item, f"{key}.{name}", names) for name, item in value.items()}
        if isinstance(kind, type) and issubclass(kind, Record):
            hints = get_type_hints(kind, localns=names)
            known = {name: item for name, item in value.items() if name in kind._fields}
            before = f"{key}." if key else ""
            return kind(
                **{name: _value(hints[name], item, f"{before}{name}", names) for name, item in known.items()}
            )
    if type(value) is kind or kind is Any:
        return value
    raise TypeError(f"{key or 'it'} = {value!r:.200} is not {_WORDS.get(origin or kind, 'a table')}")


#: What a value of some kind is called in TOML and JSON alike.
_WORDS = {str: "a text", int: "a whole number", bool: "true or false", float: "a number", tuple: "a list"}
