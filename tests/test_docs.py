"""What the documents say runs, and what they point to is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from overlay.ledger import STATES
from overlay.model import settings
from overlay.patch import CHANGES
from overlay.verdict import VERDICTS
from records import figures, patches

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OVERLAY")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean, check=False)


@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_of_the_readme_runs(snippet: str) -> None:
    done = run(sys.executable, "-W", "error", "-c", snippet)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", [line for block in blocks("console") for line in block.splitlines()])
def test_commands_of_the_readme_run(line: str) -> None:
    _, program, *arguments = shlex.split(line)
    assert program == "overlay"
    done = run(sys.executable, "-m", "overlay", *arguments)
    assert done.returncode == 0, done.stderr


def test_the_readme_names_every_verdict_and_setting() -> None:
    for word in [*VERDICTS, *settings.LOG_LEVELS]:
        assert f"`{word}`" in README, word
    decides = (ROOT / "docs/how-it-decides.md").read_text()
    for state in STATES:
        assert f"`{state}`" in decides, state


def test_the_pages_of_the_patches_are_what_they_say() -> None:
    assert patches.main(["--check"]) == 0, "./scripts/matrix patches writes them again"


@pytest.mark.parametrize("page", ["PAGE", "CHANGES"])
def test_a_page_of_the_patches_that_says_something_else_is_noticed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = getattr(patches, page).read_text()
    monkeypatch.setattr(patches, page, copy := tmp_path / "page.md")
    assert patches.main(["--check"]) == 1
    copy.write_text(old.replace("memory", "memories", 1))
    assert patches.main(["--check"]) == 1


def test_what_changes_in_a_run_has_each_patch_once_with_what_it_changes() -> None:
    from overlay.source.registry import load_patches

    rows = re.findall(
        r"^\| \[`(.+?)`\]\(.*?\)(.*?) \| (.*?) \| (?=[^|]*\|$)", patches.CHANGES.read_text(), re.MULTILINE
    )
    found = {
        name: ([change for change, cell in zip(CHANGES, cells.split("|"), strict=True) if cell.strip()], note)
        for name, note, cells in rows
    }
    assert len(rows) == len(found)
    assert found == {
        name: ([change for change in CHANGES if change in patch.changes], " (opt-in)" * patch.opt_in)
        for name, patch in load_patches().items()
    }
    headings = {
        line[3:].replace(".", "").strip("`")
        for line in patches.PAGE.read_text().splitlines()
        if line[:3] == "## "
    }
    assert set(re.findall(r"\(patches\.md#(.+?)\)", patches.CHANGES.read_text())) == headings


def test_every_page_can_be_reached_from_the_first_one() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        reached.add(page)
        links = re.findall(r"\]\((?!https?:)([^)#]+\.md)", page.read_text())
        todo += [path for link in links if (path := (page.parent / link).resolve()) not in reached]
    assert {page.resolve() for page in DOCS} <= reached


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
    for command in re.findall(r"^(\./scripts/\w+)", page.read_text(), re.MULTILINE):
        assert os.access(ROOT / command, os.X_OK), command


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_headings_that_links_go_to_exist(page: Path) -> None:
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*\.md|)#([^)]+)\)", page.read_text()):
        assert heading in headings(page.parent / target if target else page), (target, heading)


def quoted() -> list[str]:
    return [command for page in figures.documents() for command in figures.commands(page.read_text())]


def test_quoted_figures_name_a_command_that_prints_them() -> None:
    commands = quoted()
    assert commands
    for command in commands:
        script = next(word for word in shlex.split(command) if "scripts/" in word)
        assert (ROOT / script).is_file(), command
    for page in DOCS:
        text = page.read_text()
        assert text.count("<!-- printed by:") == text.count("<!-- end of print -->")
        assert "<!-- end of print -->" not in text or "```text\n$ " in text, f"{page.name} was never printed"
