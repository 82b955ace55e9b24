"""A report with something in every part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_inputs as made
from command_line import unknown_verl


def write(folder: Path, text: str) -> Path:
    """Write a report in which a text stands wherever a text may stand, and return its path."""
    site = unknown_verl(folder / "site")
    one, other = made.status(site), made.status(site, half_patched=[text], pinned=text, python=text)
    named = made.patch_of(other, "verl.sft-balance")
    named.update(state="incomplete", reason=text)
    target = named["verdict"]["targets"][0]
    target.update(project=text, reason=text, version=text)
    target["findings"] = [{"site": text, "expects": text, "holds": False, "digest": text}]
    figures = [{"name": "calls", "says": text}, {"name": "changed", "says": text}]
    effect = {"of": text, "figures": figures, "did": text, "then": text.replace("{", "(")}
    other["patches"].append({**named, "patch": f"acme/{text}", "verdict": None, "effect": effect})
    other["selection"].append(text)
    job = made.job(folder / "job", one, other, one, world=5)
    made.process(job, "1", host=text, ended=False, effects={f"acme/{text}": {"calls": 3, "changed": 1}})
    made.process(job, "1", rank=text)
    made.page(folder, str(job), "--audit", str(site))
    return folder / "r.html"


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with words that mean nothing in HTML."""
    return write(tmp_path_factory.mktemp("report"), "plain words")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report in which every text tries to be markup."""
    return write(tmp_path_factory.mktemp("report"), made.HOSTILE)
