"""The SARIF that `overlay audit` writes has what the standard requires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from audit_cases import ODD, WRONG, write

from overlay.desk.audit.job_settings import Answer
from overlay.desk.audit.sarif import sarif

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.desk.audit.audit import Audit


def record(required: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has these properties, and no others."""
    schema = {"type": "object", "required": required.split(), "properties": properties}
    return {**schema, "additionalProperties": False}


def several(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": items, **more}


TEXT = {"type": "string"}
MESSAGE = record("text", text={"type": "string", "minLength": 1})
LEVEL = {"enum": ["none", "note", "warning", "error"]}
RULE = record(
    "id",
    id=TEXT,
    shortDescription=MESSAGE,
    fullDescription=MESSAGE,
    help=MESSAGE,
    defaultConfiguration=record(level=LEVEL),
    properties=record(tags=several(TEXT, uniqueItems=True)),
)
LOCATION = record(
    physicalLocation=record(
        "artifactLocation",
        artifactLocation=record(uri={"type": "string", "pattern": "^[^/ ]"}),
        region=record(startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations=several(record(fullyQualifiedName=TEXT, kind=TEXT)),
)
RESULT = {
    **record(
        "message",
        ruleId=TEXT,
        ruleIndex={"type": "integer", "minimum": 0},
        kind={"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
        level=LEVEL,
        message=MESSAGE,
        locations=several(LOCATION),
        partialFingerprints={"type": "object", "additionalProperties": TEXT},
        suppressions=several(record("kind", kind={"enum": ["inSource", "external"]}, justification=TEXT)),
    ),
    # 3.27.10: a level of a result that is no failure is "none".
    "if": {"properties": {"kind": {"not": {"const": "fail"}}}},
    "then": {"properties": {"level": {"const": "none"}}},
}
DRIVER = record(
    "name",
    name=TEXT,
    semanticVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
    rules=several(RULE, uniqueItems=True),
)
RUN = record(
    "tool",
    tool=record("driver", driver=DRIVER),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results=several(RESULT),
)
#: What SARIF 2.1.0 (OASIS, sections 3.13 to 3.51) requires of the objects that are written, and nothing else:
#: the whole schema would have to be fetched.
LOG = record(
    "version runs", **{"$schema": {**TEXT, "format": "uri"}}, version={"const": "2.1.0"}, runs=several(RUN)
)


@pytest.mark.parametrize(
    ("source", "word", "patch", "kind", "level"),
    [
        (WRONG, "", "", "fail", "error"),
        (WRONG, "met", "", "fail", "error"),
        (WRONG, "untold", "", "review", "none"),
        (WRONG, "not-met", "", "notApplicable", "none"),
        (ODD, "", "", "review", "none"),
        (WRONG, "", "lib.fix", "fail", "error"),
    ],
)
def test_each_result_is_of_the_standard(
    source: str,
    word: str,
    patch: str,
    kind: str,
    level: str,
    tmp_path: Path,
    audited: Callable[..., Audit],
) -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    audit = audited(source, changes={"patch": patch})
    if word:
        audit = audit.replace(answers={"lib.f-adds": Answer(word=word, why="ranks is 2")})
    found = sarif(audit, write(tmp_path, source))
    jsonschema.validate(found, LOG, cls=jsonschema.Draft202012Validator)
    (run,) = found["runs"]
    (result,) = run["results"]
    assert (result["kind"], result["level"]) == (kind, level)
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "lib.f-adds"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "lib/core.py"
    assert place["region"] == {"startLine": 1}
    # What is mended is there, and whoever shows it leaves it out.
    assert ("suppressions" in result) == bool(patch)
