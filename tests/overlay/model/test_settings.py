"""What the arguments and the environment ask for."""

from __future__ import annotations

import os
from typing import Any

import pytest

from overlay.errors import SelectionError
from overlay.model import settings

IDS = ["megatron.recompute", "slime.loss-memory", "verl.dynamic-cp-loss", "verl.sft-balance"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", IDS),
        ("all", IDS),
        ("none", []),
        ("verl.sft-balance", ["verl.sft-balance"]),
        ("verl.*", ["verl.dynamic-cp-loss", "verl.sft-balance"]),
        ("-verl.*", ["megatron.recompute", "slime.loss-memory"]),
        ("all,-slime.loss-memory", ["megatron.recompute", "verl.dynamic-cp-loss", "verl.sft-balance"]),
        ("verl.* -verl.sft-balance", ["verl.dynamic-cp-loss"]),
        ("-verl.*, verl.sft-balance", ["megatron.recompute", "slime.loss-memory", "verl.sft-balance"]),
        ("-verl.*, verl.dyn*", ["megatron.recompute", "slime.loss-memory", "verl.dynamic-cp-loss"]),
        (" megatron.recompute ,, ", ["megatron.recompute"]),
    ],
)
def test_selection(text: str, expected: list[str]) -> None:
    assert list(settings.select(IDS, environ={"OVERLAY_PATCHES": text})) == expected
    if text.strip():
        assert list(settings.select(IDS, text)) == expected
        assert list(settings.select(IDS, text.replace(",", " ").split())) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("verl.sft-balanse", "verl.sft-balance"),
        ("sft-balance", "verl.sft-balance"),
        ("-verl.sft-balanse", "verl.sft-balance"),
        ("nonsense", "`overlay list` names all 4"),
        ("verl.x*", "'verl.x*' names no patch"),
        ("/etc/*", "`overlay list` names all 4"),
        ("acme/verl.*", "to load the pack acme, set OVERLAY_PACKS"),
        ("-verl.sft-balance,all", "'all' selects verl.sft-balance again: put what is dropped behind it"),
        ("none,verl.*", "'none' does not go with other terms"),
        ("-", "names no patch"),
        *[(text, "OVERLAY_PATCHES is empty") for text in (",", " ", " ,, ", "\n")],
    ],
)
def test_a_term_that_names_nothing_is_an_error_with_a_way_out(text: str, words: str) -> None:
    with pytest.raises(SelectionError) as caught:
        settings.select(IDS, environ={"OVERLAY_PATCHES": text})
    assert words in str(caught.value)
    assert "OVERLAY_PATCHES" in str(caught.value)


@pytest.mark.parametrize("patches", [[], [3], [""], ["a b"], 7, ""])
def test_a_selection_of_the_wrong_kind_is_an_error(patches: Any) -> None:
    with pytest.raises(SelectionError):
        settings.select(IDS, patches)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("", False), ("off", False)])
def test_yes_and_no(text: str, value: bool) -> None:
    assert settings.armed({"OVERLAY": text}) is value
    assert settings.armed({}) is False
    assert settings.strict(None, {"OVERLAY_STRICT": text}) is value
    assert settings.strict(not value, {"OVERLAY_STRICT": text}) is not value


def test_what_is_neither_yes_nor_no_is_an_error() -> None:
    with pytest.raises(SelectionError, match="OVERLAY_STRICT='maybe'"):
        settings.strict(None, {"OVERLAY_STRICT": "maybe"})
    with pytest.raises(SelectionError, match="strict must be"):
        settings.strict(1)  # type: ignore[arg-type]


def test_one_of_some_values() -> None:
    assert settings.log_level({}) == settings.log_level({"OVERLAY_LOG": " "}) == "info"
    assert settings.log_level({"OVERLAY_LOG": " Off "}) == "off"
    with pytest.raises(SelectionError, match=r"OVERLAY_LOG='none such'.*say debug, info, warning, error"):
        settings.log_level({"OVERLAY_LOG": "none such"})


def test_variables_that_are_no_settings_are_named() -> None:
    known = (*settings.VARIABLES, "OVERLAY_TEST_SEED", "OVERLAYFS", "PATH", "overlay_root")
    assert settings.unknown(dict.fromkeys(known, "1")) == []
    found = settings.unknown({"OVERLAY_strict": "1", "OVERLAY_PATCH": "none", "overlay_log": "off", "A": ""})
    assert [line.split(":")[0] for line in found] == ["OVERLAY_PATCH", "OVERLAY_strict", "overlay_log"]
    assert [line.split()[-1] for line in found] == ["OVERLAY_PATCHES?", "OVERLAY_STRICT?", "OVERLAY_LOG?"]
    assert settings.unknown({"OVERLAY_FOO": "1"}) == ["OVERLAY_FOO: unknown variable, ignored"]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        # A companion, a, goes with whatever is selected.
        ("verl.b", "ab"),
        ("verl.*", "abc"),
        ("-verl.b", "ac"),
        ("verl.b,-megatron.a", "b"),
        ("-megatron.*,megatron.a", "abc"),
        ("none", ""),
        ("verl.b,-verl.b", ""),
        # An opt-in patch, o, goes by its id alone.
        ("all", "abc"),
        ("*", "abc"),
        ("verl.o", "ao"),
        ("all,verl.o", "abco"),
        ("verl.o,all", "abco"),
        ("-megatron.a,verl.o", "bco"),
        ("verl.o,-verl.o*", ""),
        ("verl.o,-all,verl.b", "b"),
    ],
)
def test_companions_and_opt_in_patches(text: str, chosen: str) -> None:
    ids = ("megatron.a", "verl.b", "verl.c", "verl.o")
    found = settings.select(ids, text, companions=["megatron.a"], opt_in=["verl.o"])
    assert "".join(name[-1] for name in found) == chosen


def test_a_glob_that_matches_opt_in_patches_alone_is_an_error_that_names_them() -> None:
    for text in ("verl.o*", "all,verl.o*"):
        with pytest.raises(SelectionError, match=r"'verl\.o\*' matches only opt-in patches; .*: verl\.o"):
            settings.select(["verl.b", "verl.o"], text, opt_in=["verl.o"])


def test_pin() -> None:
    digest = f"sha256:{'0a' * 32}"
    assert settings.pin({}) == ""
    assert settings.pin({"OVERLAY_PIN": digest}) == digest
    assert settings.pin({"OVERLAY_PIN": " some/overlay.lock "}) == "some/overlay.lock"
    # Nobody has expanded what comes from a file of variables.
    assert settings.pin({"OVERLAY_PIN": "~/a.lock"}) == os.path.expanduser("~/a.lock")  # noqa: PTH111
    assert settings.trust({"OVERLAY_TRUST": "~/t.json"}) == os.path.expanduser("~/t.json")  # noqa: PTH111
    for wrong in ("sha256:", f"sha256:{'0A' * 32}", digest[:-1], f"{digest}0"):
        with pytest.raises(SelectionError, match="64 hexadecimal digits"):
            settings.pin({"OVERLAY_PIN": wrong})


def test_paths_lose_the_space_around_them() -> None:
    names = ("OVERLAY_PIN", "OVERLAY_TRUST", "OVERLAY_LEDGER_DIR")
    found = settings.absolute_paths(dict.fromkeys(names, " some/where "))
    assert found == dict.fromkeys(names, os.path.abspath("some/where"))  # noqa: PTH100


def test_packs() -> None:
    assert settings.packs({}) == ()
    assert settings.packs({"OVERLAY_PACKS": "b-2, a,b-2"}) == ("a", "b-2")
    for wrong in ("A", "a/b", "a.b", "2a", "-a", "..", "\u00e4"):
        with pytest.raises(SelectionError, match="is not the name of a pack"):
            settings.packs({"OVERLAY_PACKS": wrong})
