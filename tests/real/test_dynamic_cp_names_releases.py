"""What megatron.dynamic-cp-names is to each release, and to one that was edited."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import overlay

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Release = Callable[[str], Path]

pytestmark = pytest.mark.real

ID = "megatron.dynamic-cp-names"
BEFORE = ("0.12.3", "0.14.0", "0.15.3")
HAVING = ("0.16.0", "0.16.1", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.18.2", "0.19.0", "0.19.1", "0.19.2")
TE = "megatron/core/extensions/transformer_engine.py"


VERL = "verl==0.8.0"


@pytest.fixture
def beside(tmp_path: Path, release: Release) -> Callable[[Path, str], Path]:
    """Lay out what is asked of a Megatron beside a release of verl, for which alone the patch is there."""

    def lay(folder: Path, verl: str = VERL) -> Path:
        both = tmp_path / f"{folder.name} beside {verl}"
        both.mkdir(exist_ok=True)
        for part, home in (("megatron", folder), ("verl", release(verl))):
            if not (both / part).exists():
                (both / part).symlink_to(home / part)
        return both

    return lay


def verdict(folder: Path) -> tuple[str, str]:
    found = next(verdict for verdict in overlay.plan(ID, str(folder)).verdicts if verdict.patch == ID)
    return found.verdict, found.reason


@pytest.mark.parametrize("version", [*BEFORE, *HAVING])
def test_releases(version: str, release: Release, beside: Callable[..., Path]) -> None:
    folder = release(f"megatron-core=={version}")
    assert verdict(folder) == ("not-needed", "it serves verl alone, which is not installed")
    for verl in ("verl==0.7.1", "verl==0.9.1"):
        found, reason = verdict(beside(folder, verl))
        assert found == "not-needed"
        assert reason.startswith(f"it serves verl alone, and verl {verl.partition('==')[2]} needs nothing: ")
    found, reason = verdict(beside(folder))
    assert found == ("apply" if version in HAVING else "not-needed")
    assert bool(reason) == (version in BEFORE)


@pytest.fixture
def copied(tmp_path: Path, release: Release) -> Path:
    """Return a copy of a release to be edited."""
    shutil.copytree(release("megatron-core==0.16.1") / "megatron", tmp_path / "megatron")
    return tmp_path


def edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new", "site"),
    [
        (TE, "if packed_seq_params.cp_group is not None:", "if True:", "TEDotProductAttention.forward"),
        (
            "megatron/core/transformer/attention.py",
            "cp_group=self.pg_collection.cp,",
            "cp_group=None,",
            "Attention.forward",
        ),
        (
            "megatron/core/parallel_state.py",
            "[2**i for i in range(int(log2(len(ranks))))][1:]",
            "[2**i for i in range(int(log2(len(ranks))))]",
            "create_hybrid_dp_cp_groups",
        ),
    ],
)
def test_a_source_that_it_does_not_know_is_refused(
    copied: Path, beside: Callable[..., Path], name: str, old: str, new: str, site: str
) -> None:
    assert verdict(beside(copied))[0] == "apply"
    edit(copied, name, old, new)
    assert verdict(copied)[0] == "not-needed"
    found, reason = verdict(beside(copied))
    assert found == "unknown-source"
    assert f"{site} has an unknown digest" in reason
