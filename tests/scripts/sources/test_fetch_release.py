"""Fetching a release of a package index, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from records import fetch as fetching

#: A wheel in its least form: pip asks for no more to download it.
WHEEL = {
    "tiny/__init__.py": "VALUE = 1\n",
    "tiny-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.5\n",
    "tiny-1.5.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nTag: py3-none-any\n",
    "tiny-1.5.dist-info/RECORD": "",
}


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with one wheel, which is all that pip may look at."""
    from zipfile import ZipFile

    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with ZipFile(shelf / "tiny-1.5-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    return shelf


@pytest.fixture(autouse=True)
def no_index(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))


def fetch(shelf: Path, *requirements: str) -> int:
    return fetching.main(["--cache", str(shelf.parent / "cache"), *requirements])


def test_a_release_is_unpacked_and_the_second_call_needs_no_index(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(shelf, "Tiny==1.5") == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder == shelf.parent / "cache" / "tiny-1.5"
    assert (folder / "tiny" / "__init__.py").read_text() == "VALUE = 1\n"
    (shelf / "tiny-1.5-py3-none-any.whl").unlink()
    assert fetch(shelf, "tiny==1.5") == 0
    assert capsys.readouterr().out == f"{folder}\n"
    assert [path.name for path in folder.parent.iterdir()] == ["tiny-1.5"]


def test_what_cannot_be_had_is_named_and_the_rest_is_fetched(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(shelf, "--", "tiny==2.0", "tiny==1.5", "tiny", "tiny>=1", "tiny==../x", "-r==1") == 1
    said = capsys.readouterr()
    assert "cannot fetch tiny==2.0: ERROR: No matching distribution found" in said.err
    assert said.err.count("expected NAME==VERSION") == 4
    assert said.out.strip().endswith("tiny-1.5")
