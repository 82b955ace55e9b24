"""`overlay schema`: the JSON schema of what the commands print with `--json`, made from the records.

A *shape* says what some JSON is: a type as an annotation has it, a record, `[shape]` for a list of such, or a
dict with a shape for each key. A key that ends with `?` may be absent, and `*` stands for any keys.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from overlay.defect import HARMS, Before, Beyond, Defect, Setting
from overlay.desk.lock import Locked
from overlay.desk.new import Written
from overlay.desk.prove import contract, prove
from overlay.desk.report.job import Process
from overlay.desk.screen import Cockpit
from overlay.desk.suite.recipe import Recipe
from overlay.effect import Figure
from overlay.launch.doctor import Check, Checkup
from overlay.ledger import STATES, Met, PatchStatus, SiteStatus, Status
from overlay.model.record import Record
from overlay.patch import CHANGES, Absent, Calls, Patch, Present
from overlay.source import judge
from overlay.source.conditions import ANSWERS, Answer
from overlay.source.packs import Pack
from overlay.source.table import Row
from overlay.verdict import VERDICTS, Plan, SiteFinding, TargetVerdict, Verdict

#: What annotations of records name beside other records.
_NAMES: dict[str, Any] = {
    "Any": Any,
    "Callable": Callable,
    "ClassVar": ClassVar,
    "Condition": Setting | Before | Beyond,
    "Fact": Present | Absent | Calls,
    "Factory": str,  # a function is printed as its name
    "Mapping": Mapping,
    "Number": int | float,
    "ReadFile": Any,
    "Said": str | bool | None,
}
#: The words that a field can have.
_WORDS: dict[tuple[type[Record], str], tuple[str, ...]] = {
    **{(kind, "verdict"): tuple(VERDICTS) for kind in (Verdict, TargetVerdict, Row)},
    **{(kind, "state"): tuple(STATES) for kind in (PatchStatus, SiteStatus)},
    **{(kind, "harm"): tuple(HARMS) for kind in (Defect, Met, judge.Finding)},
    (judge.Finding, "state"): tuple(judge.DEFECT_STATES),
    (Answer, "word"): tuple(ANSWERS),
    (SiteFinding, "expects"): ("known", "present", "absent", "calls"),
    (Figure, "combine"): ("sum", "max", "min"),
    (Check, "answer"): ("yes", "no", "-"),
    (prove.Proof, "verdict"): (*prove.PROOF_VERDICTS, "apply", "not-needed"),
    **{(prove.Proof, run): ("", *contract.RUN_OUTCOMES) for run in ("alone", "patched")},
}
#: What `audit` takes from a defect for its findings.
_OF_DEFECTS = ("summary", "met", "upstream", "fixed", "shown", "tried")
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}


def schema() -> dict[str, Any]:
    """Return the schema: under `$defs`, by command, what each prints, and the records in that."""
    defs: dict[str, Any] = {}
    for name, shape in _commands().items():
        defs[name] = _schema_of(shape, defs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What overlay's commands print with --json",
        "description": "Under $defs, by command. Within a major version keys stay; new ones may come.",
        "$defs": defs,
    }


def _commands() -> dict[str, Any]:
    """Return the shape of what each command prints."""
    plan = _fields(Plan)
    of_defect = {name: _fields(Defect)[name] for name in _OF_DEFECTS}
    plan["defects"] = [{**_fields(judge.Finding), **of_defect, "settings?": Answer}]
    settings = {"file": str, "dialect": str, "unknown": {"*": str}, "elsewhere": [str], "missing": [str]}
    change = {"id": str, "before": str, "after": str, "reason": str}
    difference = {kind: [change] for kind in ("lost", "won", "failing", "flaky", "changed")} | {
        "passing": int
    }
    coverage = {
        "patch": str,
        "applied": int,
        "processes": int,
        "calls": int | None,
        "changed": int | None,
        "troubles": [str],
    }
    suite_run = {
        **dict.fromkeys(("recipe", "tests", "python", "overlay"), str),
        **{key: {"*": str} for key in ("code", "excluded")},
        "files": [str],
        "quick": bool,
        "seconds": int,
        "difference": difference,
        "coverage": [coverage],
    }
    report = {
        "processes": int,
        "groups": [{"name": str, "processes": int, "patches": {"*": _fields(PatchStatus)["state"]}}],
        "differences": [{"fact": str, "said": [[str]]}],
        "effects": {"*": {"values": {"*": float}, "processes": int, "told": str}},
        "missing": [int],
        "cut_short": [str],
        "met": [Met],
        "unreadable": [str],
    }
    return {
        "overlay": Cockpit,
        "list": [{**_fields(Patch), "here": _fields(Verdict)["verdict"]}],
        "explain": {"patch": Patch, "verdict": Verdict},
        "plan": plan,
        "audit": {**plan, "settings?": settings},
        "audit explain": {"defect": Defect, "finding": judge.Finding | None},
        "doctor": Checkup,
        "packs": [{**_fields(Pack), "loaded": bool}],
        "lock": Locked,
        "new": Written,
        "prove": {"seed": int, "environment": {"*": str}, "file": str, "rows": [prove.Proof]},
        "suite list": [Recipe],
        "suite run": {"runs": [suite_run], "not_run": [str]},
        "report": report,
        # The files in OVERLAY_LEDGER_DIR.
        "ledger": {name: shape for name, shape in _fields(Status).items() if name != "pid"},
        "process": Process,
    }


def _fields(kind: type[Record]) -> dict[str, Any]:
    """Return the shape of each field of a record, as its `to_dict` gives it."""
    records = {one.__name__: one for one in Record.__subclasses__()}
    hints = get_type_hints(kind, localns={**records, **_NAMES})
    words = {name: Literal[words] for (holder, name), words in _WORDS.items() if holder is kind}
    found = {name: words.get(name, hints[name]) for name in kind._fields}
    if kind is Patch:
        found["changes"] = [Literal[CHANGES]]
    return {"expects": Literal[kind.__name__.lower()], **found} if kind in (Present, Absent, Calls) else found


def _comments(kind: type[Record]) -> dict[str, str]:
    """Return the comment above each field of a record."""
    found: dict[str, str] = {}
    said: list[str] = []
    for base in kind.__mro__:
        for line in inspect.getsource(base).splitlines() if issubclass(base, Record) else ():
            if comment := re.match(r"    #: (.*)", line):
                said.append(comment[1])
            else:
                if said and (field := re.match(r"    (\w+):", line)):
                    found[field[1]] = " ".join(said)
                said = []
    return found


def _object(shapes: Mapping[str, Any], comments: Mapping[str, str], defs: dict[str, Any]) -> dict[str, Any]:
    properties = {}
    for key, shape in shapes.items():
        name = key.removesuffix("?")
        said = {"description": comments[name]} if name in comments else {}
        properties[name] = {**said, **_schema_of(shape, defs)}
    return {
        "type": "object",
        "properties": properties,
        "required": [key for key in shapes if not key.endswith("?")],
    }


def _schema_of(shape: Any, defs: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 -- a kind of shape each
    """Return the schema of a shape. That of each record in it goes into `defs`."""
    origin, inside = get_origin(shape), get_args(shape)
    if isinstance(shape, dict) and [*shape] != ["*"]:
        return _object(shape, {}, defs)
    if isinstance(shape, dict) or origin in (dict, Mapping):
        value = shape["*"] if isinstance(shape, dict) else inside[1]
        return {"type": "object", "additionalProperties": _schema_of(value, defs)}
    if isinstance(shape, list) or origin in (tuple, list):
        return {"type": "array", "items": _schema_of((inside or shape)[0], defs)}
    if origin is Literal:
        return {"enum": list(inside)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema_of(one, defs) for one in inside]}
    if origin is Callable:
        return {"type": "string"}
    if not (isinstance(shape, type) and issubclass(shape, Record)):
        return {"type": _TYPES[shape]} if shape in _TYPES else {}
    if shape.__name__ not in defs:
        defs[shape.__name__] = {}  # it may be inside itself
        defs[shape.__name__] = _object(_fields(shape), _comments(shape), defs)
    return {"$ref": f"#/$defs/{shape.__name__}"}
