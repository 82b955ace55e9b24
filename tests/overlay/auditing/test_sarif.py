"""The SARIF that `overlay audit` writes has what the standard requires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from audit_cases import ODD, WRONG, a_defect, a_patch, write

from overlay.auditing import audit as auditing
from overlay.auditing.audit import make_audit
from overlay.auditing.met import Answer
from overlay.auditing.sarif import sarif
from overlay.enabling.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

#: What SARIF 2.1.0 (OASIS, sections 3.13 to 3.51) requires of the objects that are written, and nothing else:
#: the whole schema would have to be fetched.
REQUIRED: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "$schema": {"type": "string", "format": "uri"},
        "runs": {"type": "array", "items": {"$ref": "#/$defs/run"}},
    },
    "additionalProperties": False,
    "$defs": {
        "message": {
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string", "minLength": 1}},
        },
        "level": {"enum": ["none", "note", "warning", "error"]},
        "run": {
            "type": "object",
            "required": ["tool"],
            "properties": {
                "tool": {
                    "type": "object",
                    "required": ["driver"],
                    "properties": {
                        "driver": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string"},
                                "semanticVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
                                "rules": {
                                    "type": "array",
                                    "uniqueItems": True,
                                    "items": {"$ref": "#/$defs/rule"},
                                },
                            },
                            "additionalProperties": False,
                        }
                    },
                },
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
            },
            "additionalProperties": False,
        },
        "rule": {
            "type": "object",
            "required": ["id"],
            "properties": {
                "id": {"type": "string"},
                "shortDescription": {"$ref": "#/$defs/message"},
                "fullDescription": {"$ref": "#/$defs/message"},
                "help": {"$ref": "#/$defs/message"},
                "defaultConfiguration": {
                    "type": "object",
                    "properties": {"level": {"$ref": "#/$defs/level"}},
                },
                "properties": {
                    "type": "object",
                    "properties": {"tags": {"type": "array", "uniqueItems": True}},
                },
            },
            "additionalProperties": False,
        },
        "result": {
            "type": "object",
            "required": ["message"],
            "properties": {
                "ruleId": {"type": "string"},
                "ruleIndex": {"type": "integer", "minimum": 0},
                "kind": {"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
                "level": {"$ref": "#/$defs/level"},
                "message": {"$ref": "#/$defs/message"},
                "locations": {"type": "array", "items": {"$ref": "#/$defs/location"}},
                "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
                "suppressions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["kind"],
                        "properties": {"kind": {"enum": ["inSource", "external"]}},
                    },
                },
            },
            "additionalProperties": False,
            # 3.27.10: a level of a result that is no failure is "none".
            "if": {"properties": {"kind": {"not": {"const": "fail"}}}},
            "then": {"properties": {"level": {"const": "none"}}},
        },
        "location": {
            "type": "object",
            "properties": {
                "physicalLocation": {
                    "type": "object",
                    "required": ["artifactLocation"],
                    "properties": {
                        "artifactLocation": {
                            "type": "object",
                            "properties": {"uri": {"type": "string", "pattern": "^[^/ ]"}},
                        },
                        "region": {
                            "type": "object",
                            "properties": {"startLine": {"type": "integer", "minimum": 1}},
                        },
                    },
                },
                "logicalLocations": {"type": "array"},
            },
            "additionalProperties": False,
        },
    },
}


def log(
    monkeypatch: pytest.MonkeyPatch, folder: Path, source: str, word: str = "", *, patched: bool = False
) -> Any:
    patch, defect = a_patch(folder), a_defect(folder)
    defect = defect.replace(patch=patch.id) if patched else defect
    monkeypatch.setattr(auditing, "load_defects", lambda _: {defect.id: defect})
    engine, tree = Engine(lambda: {patch.id: patch}), write(folder, source)
    audit = make_audit(engine, engine.plan("all", tree), tree)
    if word:
        audit = audit.replace(answers={defect.id: Answer(word=word, why="ranks is 2")})
    return sarif(audit, tree)


@pytest.mark.parametrize(
    ("source", "word", "patched", "kind", "level"),
    [
        (WRONG, "", False, "fail", "error"),
        (WRONG, "met", False, "fail", "error"),
        (WRONG, "untold", False, "review", "none"),
        (WRONG, "not-met", False, "notApplicable", "none"),
        (ODD, "", False, "review", "none"),
        (WRONG, "", True, "fail", "error"),
    ],
)
def test_each_result_is_of_the_standard(
    source: str,
    word: str,
    patched: bool,
    kind: str,
    level: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    found = log(monkeypatch, tmp_path, source, word, patched=patched)
    jsonschema.validate(found, REQUIRED, cls=jsonschema.Draft202012Validator)
    (run,) = found["runs"]
    (result,) = run["results"]
    assert (result["kind"], result["level"]) == (kind, level)
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "lib.f-adds"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "lib/core.py"
    assert place["region"] == {"startLine": 1}
    # What is mended is there, and whoever shows it leaves it out.
    assert ("suppressions" in result) == patched


def test_the_structure_refuses_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    found = log(monkeypatch, tmp_path, WRONG)
    found["runs"][0]["results"][0]["kind"] = "review"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, REQUIRED, cls=jsonschema.Draft202012Validator)
