"""Companions: what they lack stops nothing, unless somebody asked for them. And ways out that work."""

from __future__ import annotations

import gc
import re
import shlex
from typing import Any

import pytest
from fake_upstream import Engines, Upstream, forget, triple, untested

from overlay import cli
from overlay.errors import PatchError, PinError
from overlay.patch import Patch

LOST = "without it, ranks train on without a word"


def companion(upstream: Upstream, *, works: bool = False, **fields: Any) -> Patch:
    defaults: dict[str, Any] = {"name": "other.agree"}
    sites = {"fakeup.core:Engine.run": triple_of}
    made = upstream.patch(
        sites, companion=True, without="ranks train on without a word", **{**defaults, **fields}
    )
    return made if works else untested(made)


def triple_of(original: Any, _module: Any) -> Any:
    def run(self: Any, value: Any) -> Any:
        return original(self, value)

    return run


def unchanged(original: Any, _module: Any) -> Any:
    def use(value: Any) -> Any:
        return original(value)

    return use


def broken(_original: Any, _module: Any) -> Any:
    raise ImportError("no torch here")


@pytest.mark.parametrize("asked", ["all", "fakeup.*", "other.*,fakeup.*", "-none.such", "o*"])
@pytest.mark.parametrize("strict", [True, False])
def test_one_that_nobody_named_is_one_warning_also_in_strict_mode(
    upstream: Upstream, engines: Engines, capfd: pytest.CaptureFixture[str], asked: str, strict: bool
) -> None:
    spare = upstream.patch({"fakeup.user:use": unchanged}, name="none.such")
    engine = engines(upstream.patch(), companion(upstream), spare)
    engine.enable(asked, strict=strict)
    assert upstream.load().Engine().run(1) == (2 if asked == "o*" else 200)
    upstream.load("fakeup.user")
    found = {status.patch: status.state for status in engine.status().patches}
    assert found["other.agree"] == "skipped"
    lines = [line for line in capfd.readouterr().err.splitlines() if "other.agree" in line]
    assert len(lines) == 1
    assert re.match(r"overlay: NOT applied other\.agree to fakeup 1\.2\.0: unknown-source: ", lines[0])
    assert lines[0].endswith(LOST)
    assert engine.status().companions == engine.plan().companions == ("other.agree",)
    assert engine.plan().loud == ()
    assert [verdict.patch for verdict in engine.plan().lost] == ["other.agree"]


@pytest.mark.parametrize(
    "asked", ["other.agree", ["fakeup.scale", "other.agree"], "-other.agree,other.agree", "*,other.agree"]
)
def test_one_that_somebody_named_is_an_error(upstream: Upstream, engines: Engines, asked: Any) -> None:
    engine = engines(upstream.patch(), companion(upstream))
    engine.enable(asked, strict=True)
    with pytest.raises(PatchError, match=r"other\.agree is unknown-source"):
        upstream.load()
    assert engine.status().companions == ()
    assert [verdict.patch for verdict in engine.plan().loud] == ["other.agree"]


@pytest.mark.parametrize("kind", ["fails", "incomplete"])
def test_however_it_cannot_be_applied(
    upstream: Upstream, engines: Engines, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    make = broken if kind == "fails" else triple_of
    agree = companion(upstream, works=True).replace(
        targets=upstream.patch({"fakeup.core:Engine.run": make}).targets
    )
    core = upstream.load()
    kept = [core.Engine.run] if kind == "incomplete" else []
    engine = engines(upstream.patch(), agree)
    engine.enable("fakeup.*", strict=True)
    assert core.scale(1) == 200
    err = capfd.readouterr().err
    assert err.count(LOST) == 1
    assert engine.status().patches[1].state == ("failed" if kind == "fails" else "incomplete")
    del kept


def test_a_pin_that_has_it_applied_holds_for_it_too(
    upstream: Upstream, engines: Engines, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overlay.records import lock as lockfile

    agree = companion(upstream, works=True)
    (tmp_path / "o.lock").write_text(lockfile.write(engines(agree).lock()))
    monkeypatch.setenv("OVERLAY_PIN", str(tmp_path / "o.lock"))
    upstream.write(
        core="def scale(v):\n    return v\nclass Engine:\n    def run(self, v):\n        return v\n"
    )
    engine = engines(agree)
    engine.enable()
    with pytest.raises(PinError, match="verdict: locked apply, here unknown-source"):
        upstream.load()


SELECTIONS = (None, "all", "fakeup.*", "fakeup.scale,fakeup.use", "-other.agree", "fakeup.* other.agree")


@pytest.mark.parametrize("asked", SELECTIONS)
@pytest.mark.parametrize("by", ["environment", "argument"])
def test_the_way_out_that_an_error_names_works_as_printed(
    upstream: Upstream, engines: Engines, monkeypatch: pytest.MonkeyPatch, asked: str | None, by: str
) -> None:
    if by != "environment" and not asked:
        return
    patches = (
        upstream.patch({"fakeup.core:scale": broken}),
        upstream.patch({"fakeup.user:use": triple}, name="fakeup.use", requires=("fakeup.scale",)),
        untested(upstream.patch({"fakeup.core:Engine.fixed": triple}, name="fakeup.zold")),
        companion(upstream, works=True),
    )
    monkeypatch.setenv("OVERLAY_STRICT", "1")
    if by == "environment" and asked is not None:
        monkeypatch.setenv("OVERLAY_PATCHES", asked)
    engine = engines(*patches)
    engine.enable(asked if by == "argument" else None)
    with pytest.raises(PatchError) as raised:
        upstream.load()
    selection = engine.status().selection
    engine.disable()
    forget()
    text = str(raised.value)
    del raised  # its frames hold the module
    gc.collect()
    if by == "environment":
        (said,) = re.findall(r"OVERLAY_PATCHES=(.*?) leaves it out", text)
        (value,) = shlex.split(said)
        monkeypatch.setenv("OVERLAY_PATCHES", value)
        again = engines(*patches)
        again.enable()
    else:
        (said,) = re.findall(r"overlay\.enable\((.*?)\) leaves it out", text)
        again = engines(*patches)
        eval(f"again.enable({said})", {"again": again})  # noqa: S307 -- as printed
    upstream.load()
    gone = {"fakeup.scale", "fakeup.use", "fakeup.zold"}
    left = set(selection) - gone
    # A companion alone is not what anybody asked for.
    terms = asked.replace(",", " ").split() if asked else []
    named = "other.agree" in terms or "all" in terms or not terms or terms[0].startswith("-")
    assert set(again.status().selection) == (left if named else set())


def test_a_way_out_keeps_strict_mode_as_it_was_given(
    upstream: Upstream, engines: Engines, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = engines(upstream.patch(), upstream.patch(name="fakeup.twice"))
    engine.enable("all", strict=False)
    upstream.load()
    left = 'overlay.enable("all,-fakeup.twice", strict=False) leaves it out'
    assert left in capfd.readouterr().err


def test_both_ways_out_of_a_conflict_work_as_printed(
    upstream: Upstream, engines: Engines, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    patches = (
        upstream.patch(),
        upstream.patch(name="fakeup.twice"),
        upstream.patch({"fakeup.user:use": triple}, name="fakeup.use"),
    )
    monkeypatch.setenv("OVERLAY_PATCHES", "fakeup.*")
    engine = engines(*patches)
    engine.enable()
    upstream.load()
    engine.disable()
    said = re.findall(r"OVERLAY_PATCHES=(\S+) leaves it out", capfd.readouterr().err)
    assert len(said) == 2
    for value, kept in zip(said, ("fakeup.twice", "fakeup.scale"), strict=True):
        forget()
        monkeypatch.setenv("OVERLAY_PATCHES", shlex.split(value)[0])
        again = engines(*patches)
        again.enable(strict=True)
        assert upstream.load().scale(1) == 200
        assert again.status().selection == tuple(sorted({kept, "fakeup.use"}))
        again.disable()


def test_the_commands_exit_as_if_it_were_not_there(
    upstream: Upstream,
    engines: Engines,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
) -> None:
    known = {patch.id: patch for patch in (upstream.patch(), companion(upstream))}
    monkeypatch.setattr("overlay.runtime.engine.load_all", lambda: known)
    monkeypatch.setattr("overlay.cli.Engine", lambda: engines(*known.values()))
    # Those of overlay's own are fixed by patches that are not here.
    monkeypatch.setattr("overlay.desk.audit.audit.load_defects", lambda _patches: {})
    lock = str(tmp_path / "x.lock")
    for command in (["plan"], ["audit"], ["lock", "--file", lock]):
        assert cli.main(command) == 0, command
        assert cli.main([*command, "--patches", "other.agree"]) == 1 or command[0] == "audit", command
    assert "other.agree cannot be applied, but jobs go on" in capsys.readouterr().err
