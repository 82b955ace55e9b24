"""Whether two code objects do the same, wherever they come from."""

from __future__ import annotations

from types import CodeType


def bare(code: CodeType) -> CodeType:
    """Return code without where it lies. Python compares all the rest, -0.0 and 0.0 told apart."""
    inside = tuple(bare(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=inside)


def inside(code: list[CodeType], qualname: str) -> list[CodeType]:
    """Return what has a qualified name in the code of a module, without where it lies."""
    found = code
    for name in qualname.split("."):
        constants = [constant for one in found for constant in one.co_consts]
        found = [one for one in constants if isinstance(one, CodeType) and one.co_name == name]
    return [bare(one) for one in found]
