"""Whether instances of a data class have what they were made with, as far as the class's syntax tells.

Each answer is why a condition does not hold, empty if it does. What is odd in any way does not hold.
"""

from __future__ import annotations

import ast

from overlay.reading.bindings import find, names_bound
from overlay.reading.definition import defined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.reading.bindings import Found, Module

_MAKER = "dataclass"
_HOME = "dataclasses"
#: Settings of `dataclass` that leave the constructor, and what instances have from it, what they are.
_HARMLESS = frozenset(
    ("eq", "frozen", "kw_only", "match_args", "order", "repr", "slots", "unsafe_hash", "weakref_slot")
)
#: Methods that decide on what an instance is made of, or on what reading an attribute gives.
_DECIDING = frozenset(
    ("__init__", "__new__", "__getattribute__", "__setattr__", "__delattr__", "__replace__")
)
#: What sets an attribute whose name is not in the syntax tree.
_SETTING = frozenset(
    ("setattr", "delattr", "vars", "locals", "exec", "eval", "__dict__", "__setattr__", "__delattr__")
)
#: Annotations by which a name is no field of instances.
_NO_FIELD = ("ClassVar", "InitVar")


def lacks_fields(module: Module, name: str, fields: Sequence[str], default: str) -> str:
    """Return why a class of a module does not have fields with a default (any if empty), empty if it does."""
    made = defined(find(module, name), ast.ClassDef, "class")
    if isinstance(made, str):
        return made
    if decorated := _not_made_by_dataclass(made, module):
        return decorated
    deciding = sorted(names_bound(made) & _DECIDING)
    if deciding:
        return f"has a {deciding[0]} of its own"
    wrong = (_no_field(field, find(module, f"{name}.{field}"), default, module) for field in fields)
    return _sets(made, fields) or next(filter(None, wrong), "")


def _not_made_by_dataclass(node: ast.ClassDef, module: Module) -> str:
    """Return why the constructor of a class is not the one that `dataclass` writes, empty if it is."""
    if node.bases or node.keywords:
        return "has bases or a metaclass"
    if len(node.decorator_list) != 1:
        return f"is not decorated with {_MAKER} alone"
    decorator = node.decorator_list[0]
    if isinstance(decorator, ast.Call):
        plain = all(
            word.arg in _HARMLESS and isinstance(word.value, ast.Constant) for word in decorator.keywords
        )
        if decorator.args or not plain:
            return f"is decorated with settings of {_MAKER} that may change its constructor"
        decorator = decorator.func
    text = ast.unparse(decorator)
    bound = find(module, text.partition(".")[0])
    if len(bound) == 1 and not bound[0].conditional and text in (_MAKER, f"{_HOME}.{_MAKER}"):
        # `from dataclasses import dataclass`, or `import dataclasses`.
        written = f"from {_HOME} import {_MAKER}" if text == _MAKER else f"import {_HOME}"
        if ast.unparse(bound[0].node) == written:
            return ""
    return f"is decorated with something else than {_MAKER} (@{text})"


def _sets(node: ast.ClassDef, names: Sequence[str]) -> str:
    """Return why something in a class may set one of its fields anew, empty if nothing does."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr in names and not isinstance(part.ctx, ast.Load):
            return f"sets {part.attr} anew"
        word = part.id if isinstance(part, ast.Name) else getattr(part, "attr", "")
        if word in _SETTING:
            return f"may set a field anew ({word})"
    return ""


def _no_field(name: str, found: list[Found], default: str, module: Module) -> str:
    """Return why a name is not a field with a default that may be asked for, empty if it is."""
    if not found:
        return f"has no field {name}"
    if len(found) > 1 or found[0].conditional:
        return f"binds {name} more than once, or under a condition"
    node = found[0].node
    if not isinstance(node, ast.AnnAssign):
        return f"has no field {name}"
    value = "" if node.value is None else ast.unparse(node.value)
    if not isinstance(node.value, (ast.Constant, type(None))):
        return f"has a default of {name} that is no constant"
    if default and value != default:
        return f"has another default of {name} ({value or 'none'})"
    return _no_annotation(name, node.annotation, module)


def _no_annotation(name: str, annotation: ast.expr, module: Module) -> str:
    """Return why an annotation may be one by which a name is no field, empty if it is not."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return f"has a quoted annotation of {name}"
    texts = [ast.unparse(annotation)]
    for part in ast.walk(annotation):
        if isinstance(part, ast.Name):
            bound = (found.node for found in find(module, part.id))
            texts += [ast.unparse(one) for one in bound if isinstance(one, (ast.ImportFrom, ast.Assign))]
    return f"has no field {name}" if any(word in text for text in texts for word in _NO_FIELD) else ""
