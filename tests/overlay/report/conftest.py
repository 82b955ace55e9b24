"""A report with something in every part of it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import report_inputs as made
from command_line import unknown_verl

from checks import SEED
from overlay import cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Report = Callable[..., Path]


def drawn() -> random.Random:
    """Return the source of a report's figures: the same for each, and another in each run."""
    return random.Random(f"{SEED}/report")


@pytest.fixture
def draw() -> random.Random:
    print(f"OVERLAY_TEST_SEED={SEED}")
    return drawn()


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the function that writes a report in which a text stands wherever a text may stand."""

    def write(text: str) -> Path:
        folder = tmp_path_factory.mktemp("report")
        site = unknown_verl(folder / "site")
        one, other = made.status(site), made.status(site, half_patched=[text], pinned=text)
        named = made.patch_of(other, "verl.sft-balance")
        place = {
            "site": f"m:{text}",
            "project": text,
            "state": "incomplete",
            "rebound": [text],
            "stale": [text],
        }
        named.update(state="incomplete", reason=text, sites=[place])
        target = named["verdict"]["targets"][0]
        target.update(reason=text, version=text, metadata_version=text, variant=text)
        target["findings"] = [{"site": text, "expects": text, "holds": False, "digest": text, "found": text}]
        other["patches"].append({**named, "patch": f"acme/{text}", "verdict": None})
        other["selection"].append(text)
        pages = folder / "report.html"
        arguments = ["report", "-o", str(pages), "--title", text, "--audit", str(site)]
        for rank, status in enumerate((one, other, one)):
            arguments += ["--ledger", made.write(folder / f"rank-{rank}.json", status)]
        arguments += ["--suite", made.write(folder / "suite.json", made.suite(text))]
        arguments += [
            "--figures",
            made.write(folder / "figures.json", {"figures": made.figures(drawn(), text)}),
        ]
        assert cli.main(arguments) == 0
        return pages

    return write


@pytest.fixture(scope="session")
def page(full: Report) -> Path:
    """A report with words that mean nothing in HTML."""
    return full("plain words")


@pytest.fixture(scope="session")
def hostile(full: Report) -> Path:
    """A report in which every text is an attempt to be markup."""
    return full(made.HOSTILE)
