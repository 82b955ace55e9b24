"""What is installed from a wheel has the recipes of suites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worksite import Venv

SUITES = Path(__file__).resolve().parents[2] / "compat" / "suites"


def test_the_recipes_are_in_the_wheel(worksite: Venv) -> None:
    done = worksite.run("-m", "overlay", "suite", "list")
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert listed == sorted(path.stem for path in SUITES.glob("*.toml"))
    assert listed
