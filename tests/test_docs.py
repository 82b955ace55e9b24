"""What the documents say runs, and what they point to is there."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from command_line import clean

from environment import door
from overlay import cli
from overlay.ledger import STATES
from overlay.model import settings
from overlay.patch import CHANGES
from overlay.verdict import VERDICTS
from records import figures, patches

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SETTINGS = (ROOT / "docs/settings.md").read_text()
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README + SETTINGS, re.MULTILINE | re.DOTALL)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean(), check=False)


@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_of_the_readme_runs(snippet: str) -> None:
    done = run(sys.executable, "-W", "error", "-c", snippet)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", [line for block in blocks("console") for line in block.splitlines()])
def test_commands_of_the_readme_run(line: str) -> None:
    _, program, *arguments = shlex.split(line, comments=True)
    assert program == "overlay"
    done = run(sys.executable, "-m", "overlay", *arguments)
    assert done.returncode == 0, done.stderr


def test_the_documents_are_short() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.encode()) <= 8000
    # Those that are written by hand: the others grow with what is known.
    texts = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    texts = [text for text in texts if "not to be edited" not in text]
    assert sum(len(text.splitlines()) for text in texts) <= 3000
    assert len(texts) <= 20


def test_the_docs_name_every_verdict_setting_and_state() -> None:
    for word in [*VERDICTS, *settings.LOG_LEVELS, *settings.VARIABLES]:
        assert f"`{word}`" in SETTINGS, word
    decides = (ROOT / "docs/how-it-decides.md").read_text()
    for state in STATES:
        assert f"`{state}`" in decides, state


def test_the_pages_of_the_patches_are_what_they_say() -> None:
    assert patches.main(["--check"]) == 0, "./scripts/matrix patches writes them again"


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


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_links_of_changes_exist_from_the_changelog() -> None:
    for change in (ROOT / "changes").glob("[!R]*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", change.read_text()):
            assert (ROOT / target).exists(), (change.name, target)


def built(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site))


def test_the_site_builds_and_can_be_searched(tmp_path: Path) -> None:
    done = built(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {folder.parent.name for folder in tmp_path.glob("*/index.html")} >= {"running", "patches"}
    assert "slime.loss-memory" in (tmp_path / "search" / "search_index.json").read_text()


def test_dead_links_and_pages_outside_the_navigation_stop_the_site(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "docs/new.md").write_text("linked from nowhere\n")
    with (tmp_path / "docs/pin.md").open("a") as file:
        file.write("\n[gone](nowhere.md) [gone](index.md#no-such-heading)\n")
    done = built(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    for said in ("nowhere.md", "no-such-heading", "not included in the"):
        assert said in done.stderr


def typed(page: Path) -> list[list[str]]:
    """Return the commands in the blocks of a page that a reader types into a shell."""
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


@cache
def help_of(program: str, *asked: str) -> str:
    """Return what a command says of itself, asked in this process."""
    main = cli.main
    if program != "overlay":
        if not asked:
            return door.usage(program)
        module, rest = door.chosen(program, [*asked])
        main, asked = importlib.import_module(module).main, tuple(rest)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*asked, "--help"])
    return said.getvalue()


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_commands_have_the_options_that_pages_give_them(page: Path) -> None:
    for line in typed(page):
        program, *words = [word for word in line if not re.fullmatch(r"[A-Z_]+=.*", word)] or [""]
        asked = [word for word in words[:1] if re.fullmatch(r"[a-z]+", word)]
        if program == "overlay":
            known = help_of("overlay", *asked)
            if asked == ["run"]:  # what it starts has options of its own
                words = words[: next(at for at, word in enumerate(words) if at and word[0] != "-")]
        elif program.startswith("./scripts/"):
            name = program.removeprefix("./scripts/")
            known = help_of(name, *(word for word in asked if word in door.programs(door.DOORS[name][0])))
        else:
            continue
        assert known, line
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert option in known, (line, option)


def test_known_messages_of_overlay_are_words_of_its_code() -> None:
    section = (ROOT / "docs/known-issues.md").read_text().partition("## Messages")[2].partition("\n## ")[0]
    texts = [path.read_text() for path in (ROOT / "startup").iterdir()]
    for path in [file for room in ("overlay", "compat", "patches") for file in (ROOT / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts.append(
                "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts)
            )
    known = "\n".join(texts)
    messages = [
        message
        for title in re.findall(r"^### (.*)$", section, re.MULTILINE)
        for message in re.findall(r"`([^`]+)`", title)
    ]
    assert messages
    for message in messages:
        for words in re.split(r"\.\.\.|overlay: |\w+Error: |[:,.;] |[()]", message):
            assert words.strip(" :;") in known, message


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


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("audit", "./scripts/demo audit"),
        ("results", "./scripts/demo log"),
        ("support", "./scripts/matrix tested --recorded"),
        ("trust", "./scripts/torture mutants --recorded"),
    ],
)
def test_a_print_that_takes_seconds_is_what_is_printed_now(page: str, command: str) -> None:
    """`./scripts/matrix figures docs/PAGE.md` prints it again."""

    def same_everywhere(text: str) -> str:
        return re.sub(r"\b[0-9a-f]{12,}\b|\"(python|torch)\": \"[^\"]+\"", "", text)

    text = (ROOT / "docs" / f"{page}.md").read_text()
    (old,) = [match["body"] for match in figures.MARKED.finditer(text) if match["command"] == command]
    program, *words = shlex.split(command)
    now = figures.quoted(command, run(str(ROOT / program), *words).stdout)
    assert same_everywhere(now) == same_everywhere(old)


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
