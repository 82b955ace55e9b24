"""What a long command says on stderr, where that is a terminal and where it is none."""

from __future__ import annotations

import io
import itertools
import sys
from typing import TYPE_CHECKING

import pytest

from progress import tracked

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def worked() -> Iterator[str]:
    """Yield what is worked on, and print a result for each."""
    for name in tracked(["one", "two"], str.upper):
        print(f"result of {name}")
        yield name


def test_without_a_terminal_there_is_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(worked()) == ["one", "two"]
    said = capsys.readouterr()
    assert said.err == "ONE ...\nTWO ...\n"
    assert said.out == "result of one\nresult of two\n"
    assert list(tracked("ab", lines=False)) == ["a", "b"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("shared", [True, False])
def test_a_terminal_has_a_bar_and_stdout_is_the_same(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """`shared`: where stdout is the same terminal, results stand above the bar."""
    out, err = Terminal() if shared else io.StringIO(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "CI", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert list(worked()) == ["one", "two"]
    assert "TWO" in err.getvalue()
    assert "1/2" in err.getvalue()
    assert (err if shared else out).getvalue().count("result of ") == 2
    assert out.getvalue() == ("" if shared else "result of one\nresult of two\n")


def test_what_is_worked_on_inside_an_item_gets_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert [(one, other) for one in tracked("ab") for other in tracked("cd")] == [
        *itertools.product("ab", "cd")
    ]
    assert list(tracked("e")) == ["e"]
