"""What a command printed with `--json`, held to the schema that overlay prints."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.desk.schema import schema as made

SCHEMA = made()


def closed(schema: Any) -> Any:
    """Return a schema that allows no other keys than it names: what overlay prints today is all in it."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    return {**found, "additionalProperties": False} if "required" in found else found


def check(found: Any, name: str) -> None:
    """Hold what a command has printed to its schema, and see that the schema would refuse something else."""
    jsonschema: Any = pytest.importorskip("jsonschema")
    schema = closed({**SCHEMA, "$ref": f"#/$defs/{name.replace(' ', '%20')}"})
    jsonschema.validate(found, schema, cls=jsonschema.Draft202012Validator)
    wrong = [{"id": 1}] if isinstance(found, list) else {**found, "verl:more": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema, cls=jsonschema.Draft202012Validator)
