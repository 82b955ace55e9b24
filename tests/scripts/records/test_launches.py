"""What upstreams run as `__main__`: found in the text of their scripts, and in their sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from fake_upstream import write_files

from overlay.source.registry import load_patches
from records import launches
from sources import releases
from sources.fetch_release import FetchError as NoRelease
from sources.git_sources import FetchError

#: What `tests/real/test_launched_verl.py` runs by verl's own commands.
LAUNCHED = {"verl.trainer.fsdp_sft_trainer", "verl.trainer.main_ppo_sync", "verl.trainer.sft_trainer_ray"}


def test_commands_and_what_they_reach_are_found(tmp_path: Path) -> None:
    files = {
        "up/__init__.py": "", "up/run.py": "def f():\n    from . import late\n", "up/late.py": "",
        "up/lost.py": "",
        "up/tool/__init__.py": "", "up/tool/__main__.py": "import up.named", "up/named.py": "",
        "up/hook.py": "", "train.py": "ROLLOUT = 'up.hook.generate'",
        "run.sh": "ENTRY='-m up.run'\ntorchrun --x \\\n ./train.py\npython3 -m up.tool\n# see up/lost.py\n",
    }  # fmt: skip
    write_files(tmp_path, files)
    known = launches.modules(tmp_path)
    run, settings = launches.commands(tmp_path, known)
    assert run == {"up.run": 1, "train": 1, "up.tool.__main__": 1}
    assert "up.lost" not in settings
    assert launches.reached({*run}, known) == {"up", "up.late", "up.named", "up.hook"}


def test_each_replaced_module_that_can_be_run_is_run_by_a_test() -> None:
    names = {name for there in load_patches().values() for name in there.modules()}
    found, seen = set(), 0
    for line in releases.read():
        try:
            folder = releases.fetch(line)
        except (FetchError, NoRelease):
            continue
        seen += 1
        for name in names:
            path = folder / f"{name.replace('.', '/')}.py"
            if path.exists() and any(
                isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
                for node in ast.parse(path.read_bytes()).body
            ):
                found.add(name)
    if not seen:
        pytest.skip("no release can be had")
    assert found <= LAUNCHED
