"""What the audit says of scripts, against the command lines that these really produce."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.source.source import Tree
from records import scripts
from records._script_runs import NoNamespaceError, command_lines
from sources.git_sources import FetchError

pytestmark = pytest.mark.real

#: What upstreams' scripts do that was once read wrongly, each with flags enough for a job.
CAUSES = {
    "an item of an array": "A=(\n  model_engine=megatron\n  {verl}\n)\npython3 -m {ppo} ${{A[@]}}",
    "an engine that is a variable": "python3 -m {ppo} --config-name=$C model_engine=$E {verl}",
    "words from elsewhere": "python3 -m {ppo} {verl} $MORE",
    "branches": "if [ $# = 0 ]; then\n  CP=4\nelse\n  CP=1\nfi\ntorchrun train.py {flags} {cp} $CP",
    "an item in a branch": "A=({flags})\n[ $# = 1 ] || A+=({cp} 2)\ntorchrun train.py ${{A[@]}}",
    "arithmetic": "CP=2\nCP=$((CP*4))\ntorchrun train.py {flags} {cp} $CP",
    "a loop": "CP=1\nfor one in 1 2; do CP=$one; done\ntorchrun train.py {flags} {cp} $CP",
    "a function": "CP=1\nsettle() {{\n  CP=8\n}}\nsettle\ntorchrun train.py {flags} {cp} $CP",
    "quotes over lines": 'A="\n  {flags}\n  {cp} 2"\ntorchrun train.py $A',
    "an array that is not passed on": "A=({cp} 2)\ntorchrun train.py {flags}",
    "a document": "cat > /tmp/x <<END\n{cp} 2\nEND\ntorchrun train.py {flags}",
    "a command that ends early": "torchrun train.py {flags}\n   {cp} 2 # no backslash before",
    "a default": "CP=${{CP:-2}}\ntorchrun train.py {flags} {cp} ${{CP}}",
    "another script": "bash -c true\nbash other.sh {flags}",
    "what it must not do": "pkill -9 python; kill -9 1; rm -rf /; exec torchrun train.py {flags}",
}
CP, PPO = "--context-parallel-size", "verl.trainer.main_ppo"
FLAGS = "--num-layers 2 --num-experts 4 --hf-checkpoint x --fp16 --lambd 1 --gamma 1 --kl-coef 0 --colocate"
VERL = " ".join(f"actor_rollout_ref.actor.a{one}=1" for one in range(8))


def test_a_script_and_its_command_line_agree(tmp_path: Path) -> None:
    for name, text in CAUSES.items():
        (tmp_path / f"{name}.sh").write_text(text.format(flags=FLAGS, verl=VERL, cp=CP, ppo=PPO))
    (tmp_path / "other.sh").write_text(f"torchrun train.py $@ {CP} 2")
    try:
        found, refused = scripts.compare(tmp_path, Tree([str(tmp_path)]))
    except NoNamespaceError as error:
        pytest.skip(str(error))
    assert {one.script for one in found} == {f"{name}.sh" for name in CAUSES}
    assert refused == []
    assert [one for one in found if one.wrong] == []
    assert sum(one.decided and one.said.word != "untold" for one in found) > len(found) / 3


def test_nothing_of_a_script_is_let_out(tmp_path: Path) -> None:
    """It sees no file, process or network of this machine, and writes to none."""
    (tmp_path / "tree").mkdir()
    tries = (
        f"[ -e {tmp_path} ]",
        "[ -e /old/etc ]",
        "touch /lib/x",
        ": < /dev/tcp/127.0.0.1/22",
        "kill -0 1",
    )
    text = "".join(f"{one} && python3 '{one}'\n" for one in tries)
    (tmp_path / "tree/x.sh").write_text(f"touch {tmp_path}/out\n{text}python3 ends\n")
    try:
        lines = command_lines(tmp_path / "tree", ["x.sh"])["x.sh"]
    except NoNamespaceError as error:
        pytest.skip(str(error))
    assert lines == [["python3", "kill -0 1"], ["python3", "ends"]]  # it is a stand-in that succeeds
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


@pytest.mark.nightly("a few scripts stand for them by day")
@pytest.mark.parametrize("revision", scripts.REVISIONS)
def test_no_script_of_an_upstream_is_judged_wrongly(revision: str) -> None:
    try:
        found, _ = scripts.of(revision)
    except (FetchError, NoNamespaceError) as error:
        pytest.skip(str(error))
    assert found
    assert [one for one in found if one.wrong] == []
