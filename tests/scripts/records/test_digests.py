"""scripts/records/digests.py, on upstreams of the tests' own, and on a Megatron that was changed."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from overlay.catalogue.registry import load_patches
from overlay.patch import Known, known, replaced, variant
from overlay.reading.source import InstalledTree
from records import _support_checks, _write_digests, digests, support
from sources import releases
from sources.releases import Release
from tortures._run_contracts import with_digests

if TYPE_CHECKING:
    from types import ModuleType

ID = "megatron.recompute"
SITE = "up:f"
OLD = 'def f(x):\n    """Old words."""\n    y = x\n    return y\n'
OTHER = "def f(x, y, z):\n    print(x)\n    print(y)\n    return z\n"
NEW = "def f(x):\n    y = x + 1\n    return y\n"


def make(original: Any, module: ModuleType) -> Any:
    return original


@pytest.fixture
def upstreams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A patch that knows two sources of a site, and three releases: these two, and a new one."""
    found = {}
    for name, text in {"up==1": OTHER, "up==2": OLD, "up==3": NEW, "up==4": OTHER}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "up.py").write_text(text)
        found[name] = folder
    old, other = (InstalledTree(str(found[name])).digest(SITE) or "" for name in ("up==2", "up==1"))
    patch = load_patches()[ID]
    patch = patch.replace(
        targets=(patch.targets[0].replace(variants=(variant("1", ">=1", replaced(SITE, make, other, old)),)),)
    )
    monkeypatch.setattr(
        releases, "for_patch", lambda _, missing: ((Release(name), folder) for name, folder in found.items())
    )
    verdicts = {"up==3": "unsupported", "up==4": "unsupported"}
    monkeypatch.setattr(support, "audit", lambda one, _: {ID: {"verdict": verdicts.get(one.name, "apply")}})
    monkeypatch.setattr(digests, "load_patches", lambda: {ID: patch})
    return patch, found, old


def test_a_new_source_is_compared_with_the_nearest_known_one(
    upstreams: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found, old = upstreams
    new = InstalledTree(str(found["up==3"])).digest(SITE)
    assert digests.main([ID]) == 1
    out = capsys.readouterr().out
    words = [line.split()[:3] for line in out.splitlines()[:4]]
    assert [(release, word) for release, _, word in words] == [
        ("up==1", "known"),
        ("up==2", "known"),
        ("up==3", "new"),
        ("up==4", "known"),
    ]
    assert f"--- up:f up==2 {old}" in out
    assert f"+++ up:f up==3 {new}" in out
    assert "-    y = x\n+    y = x + 1\n" in out
    assert f'after {old}: "{new}",  # up==3' in out


def test_nothing_new_is_exit_code_0(upstreams: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert digests.main([ID, "--only", "up==2"]) == 0
    assert "up==3" not in capsys.readouterr().out


def test_the_place_to_write_is_a_line_of_the_patch(upstreams: Any) -> None:
    patch, found, _ = upstreams
    near = digests.Source("up==2", found["up==2"], SITE, "9bc2baceb2bb", OLD, "apply")
    new = digests.Source("up==3", found["up==3"], SITE, "0" * 12, NEW, "unsupported")
    place = digests.line(patch, new, near).partition(",")[0]
    name, _, number = place.partition(":")
    assert name == "patches/megatron/recompute/__init__.py"
    text = (Path(__file__).resolve().parents[3] / name).read_text().splitlines()[int(number) - 1]
    assert "9bc2baceb2bb" in text


def answers(monkeypatch: pytest.MonkeyPatch, outcome: str, *words: str) -> None:
    """Let a contract come out so, and a person say this."""
    said = iter(words)
    monkeypatch.setattr(_support_checks, "with_digests", lambda *_: outcome)
    monkeypatch.setattr("builtins.input", lambda _: next(said))


@pytest.mark.parametrize(
    ("outcome", "word", "writes"),
    [
        ("passed", "y", True),
        ("passed", "", False),
        ("not run: it starts processes", "yes", True),
        ("wrong: 3 is not 4 (seed 1)", "y", False),
    ],
)
def test_a_digest_is_written_on_a_yes_and_where_the_contract_is_not_broken(
    outcome: str, word: str, *, writes: bool, upstreams: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found, old = upstreams
    new = InstalledTree(str(found["up==3"])).digest(SITE)
    home = tmp_path / "words.py"
    before = f'ONE = known("up:f", "{old}", "0123456789ab")\nTWO = ("{old}",)\n'
    home.write_text(before)
    monkeypatch.setattr(digests, "_home", lambda _: home)
    answers(monkeypatch, outcome, word)
    assert digests.main([ID, "--write"]) == int(not writes)
    wanted = f'ONE = known("up:f", "{old}", "{new}", "0123456789ab")\nTWO = ("{old}", "{new}")\n'
    assert ast.dump(ast.parse(home.read_text())) == ast.dump(ast.parse(wanted if writes else before))


def test_a_digest_with_a_name_of_its_own_is_left_to_a_person(
    upstreams: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "words.py"
    home.write_text(f'OLD = "{upstreams[2]}"\n')
    monkeypatch.setattr(digests, "_home", lambda _: home)
    answers(monkeypatch, "passed", "y")
    assert digests.main([ID, "--write"]) == 1
    assert "has a name of its own" in capsys.readouterr().out
    assert home.read_text() == f'OLD = "{upstreams[2]}"\n'


def test_nobody_to_ask_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", closed)
    assert not _write_digests.ask("write?")


def test_a_new_digest_is_put_beside_the_known_one_alone() -> None:
    patch = load_patches()[ID]
    target = patch.targets[0].replace(
        variants=(
            variant("1", ">=1", known("m:f", "a"), known("m:g", "a")),
            variant("2", ">=1", known("m:f", "b")),
        )
    )
    wider = with_digests(patch.replace(targets=(target,)), [("m:f", "a", "c")])
    assert [condition for one in wider.targets[0].variants for condition in one.shape] == [
        Known(site="m:f", digests=("a", "c")),
        Known(site="m:g", digests=("a",)),
        Known(site="m:f", digests=("b",)),
    ]


@pytest.mark.real
def test_a_contract_runs_on_a_source_that_is_not_known(tmp_path: Path) -> None:
    found = find_spec("megatron.core")
    assert found is not None
    core = Path(found.origin or "").parent
    site = "megatron.core.tensor_parallel.random:CheckpointFunction.backward"
    package = tmp_path / "megatron"
    package.mkdir()
    (package / "core").mkdir()
    for path in core.iterdir():
        if path.name not in ("tensor_parallel", "__pycache__"):
            (package / "core" / path.name).symlink_to(path)
    inner = package / "core" / "tensor_parallel"
    inner.mkdir()
    for path in (core / "tensor_parallel").iterdir():
        if path.name not in ("random.py", "__pycache__"):
            (inner / path.name).symlink_to(path)
    text = (core / "tensor_parallel" / "random.py").read_text()
    digest = InstalledTree(str(core.parents[1])).digest(site) or ""
    head = "def backward(ctx, *args):"
    assert head in text
    for said, expected in (("0 == 0", "passed"), ("0 == 1", "AssertionError")):
        changed = text.replace(f"    {head}\n", f"    {head}\n        assert {said}\n")
        # As the class has it: with whatever stands above the first statement.
        (inner / "random.py").write_text(changed)
        new = InstalledTree(str(tmp_path)).digest(site) or ""
        assert new not in ("", digest)
        assert expected in _support_checks.with_digests(ID, tmp_path, [(site, digest, new)])
    assert "PatchError" in _support_checks.with_digests(ID, tmp_path, [])
