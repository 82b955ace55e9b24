"""The slips of `scripts/torture own`: each is there to be made, and one is made, caught and undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tortures import own
from tortures._own_copy import Copy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "copy")


def test_each_slip_can_be_made_in_one_place_and_has_tests(copy: Copy) -> None:
    slips = own.slips()
    assert len(slips) >= 60
    assert len({slip.defect for slip in slips}) == len(slips)
    for slip in slips:
        before = copy.file_with(slip.old).read_text()
        assert before.replace(slip.old, slip.new) != before
        assert copy.tests(slip.tests)


def test_a_slip_is_caught_in_the_copy_and_undone(copy: Copy) -> None:
    (slip,) = (one for one in own.slips() if one.tests == ("test_projects.py",) and "setup.py" in one.defect)
    part = own.quick_part(copy.tests(slip.tests))
    file = copy.file_with(slip.old)
    before = file.read_text()
    with copy.changed(slip.old, slip.new):
        assert "test_projects.py::" in copy.pytest(part, 120).failed
    assert file.read_text() == before == (ROOT / file.relative_to(copy.root)).read_text()
    assert copy.pytest(part, 120).failed == ""
