"""Releases on which what a record advises is done."""

from __future__ import annotations

import pytest

from records import defects

#: Release to defect to what it is there.
RECORD = defects.heat()


def having(defect: str) -> pytest.MarkDecorator:
    """Run a test for each release that has a defect, by day for the last of them.

    Images and heads are judged by the same sources.
    """
    found = [name for name, row in RECORD.items() if row.get(defect) in ("open", "mended") and "==" in name]
    assert found
    left = pytest.mark.nightly("the last release stands for the others", name=found[:-1])
    return pytest.mark.parametrize("name", [pytest.param(name, marks=left) for name in found])
