"""The command line, as a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import overlay, python, read, unknown_verl
from fake_upstream import PROJECT

from overlay import cli
from overlay.runtime.engine import Engine
from overlay.source.decide import installed
from overlay.source.registry import environment, load_patches
from overlay.source.source import Tree

PATCHES = Path(__file__).resolve().parents[3] / "patches"


#: The patches that there are, by their files and folders.
IDS = sorted(
    f"{place.parent.name}.{place.stem.replace('_', '-')}"
    for place in PATCHES.glob("[!_]*/[!_]*")
    if place.suffix == ".py" or (place / "__init__.py").is_file()
)


#: A patch of which `unknown_verl` is an unknown source.
UNKNOWN = "verl.strict-token-budget"


def test_a_folder_that_has_the_name_of_a_project_is_none(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "ray").mkdir()
    found = installed((*environment().SHOWN, PROJECT), Tree(str(tmp_path)))
    assert [(one.version, one.where) for one in found] == [("", "")] * 3
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text("__version__ = '9.9'\n")
    found = installed(environment().SHOWN, Tree(str(tmp_path)))
    assert (found[0].version, found[0].where) == ("9.9", str(tmp_path))


def test_list_knows_what_is_installed(tmp_path: Path) -> None:
    (unknown_verl(tmp_path) / "verl/__init__.py").touch()
    environ = {"PYTHONPATH": str(tmp_path), "OVERLAY_PATCHES": "verl.*,miles.*"}
    here = {patch["id"]: patch["here"] for patch in read("list", code=0, **environ)}
    assert sorted(here) == IDS
    assert here["verl.strict-token-budget"] == "unknown-source"
    assert here["miles.loss-memory"] == "not-installed"  # an upstream of which no environment has a release
    text = overlay("list", **environ).stdout
    assert all(name in text for name in IDS)
    assert re.search(r"^miles.loss-memory +not-installed", text, re.MULTILINE)


def test_a_selection_may_begin_with_a_drop(tmp_path: Path) -> None:
    for command in ("plan", "audit"):
        data = read(command, "--site", str(tmp_path), "--patches", "-verl.sft-balance", code=2)
        left = {one["patch"] for one in data["verdicts"] if one["verdict"] == "not-selected"}
        assert "verl.sft-balance" in left
        assert "verl.strict-token-budget" not in left


def test_each_patch_is_explained_in_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, patch in load_patches().items():
        assert cli.main(["explain", name, "--site", str(tmp_path), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["patch"]["id"], data["verdict"]["verdict"]) == (name, "not-installed")
        assert cli.main(["explain", name, "--site", str(tmp_path)]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"{name}: ")
        # What cannot be cut, the path of a file or the name of a site, may be longer.
        assert [line for line in text.splitlines() if len(line) > 80 and " " in line.strip()] == []
        words = " ".join(text.split())
        said = f"Changes the numbers of a running job: {'YES' if 'numbers' in patch.changes else 'no'}"
        assert (said in words) is bool(patch.changes)
        chosen = ",".join([name, *patch.requires])
        assert f"To apply it alone: overlay run --patches {chosen} COMMAND" in words


@pytest.mark.parametrize("command", ["list", "plan", "doctor", "audit", "lock"])
def test_tables_fit_a_terminal(command: str, tmp_path: Path) -> None:
    more = ["--file", str(tmp_path / "x.lock")] if command == "lock" else []
    text = overlay(command, *more).stdout
    long = [line for line in text.splitlines() if len(line) > 80 and not re.search(r"/|sha256:", line)]
    assert (long, "\x1b" in text) == ([], False)


def test_plan_of_an_empty_folder(tmp_path: Path) -> None:
    shown = overlay("plan", "--site", str(tmp_path)).stdout
    assert shown.startswith("no selected patch is for anything that is installed here\nleft out ")
    data = read("plan", "--site", str(tmp_path), code=2)
    opt_in = {patch["id"] for patch in read("list") if patch["opt_in"]}
    found = {verdict["patch"]: verdict["verdict"] for verdict in data["verdicts"]}
    assert found == {name: "not-selected" if name in opt_in else "not-installed" for name in found}
    chosen = read("plan", "--site", str(tmp_path), code=2, OVERLAY_PATCHES="verl.*")
    assert "not-selected" in {verdict["verdict"] for verdict in chosen["verdicts"]}
    audited = read("audit", "--site", str(tmp_path), code=2, OVERLAY_PATCHES="verl.*")
    assert {verdict["verdict"] for verdict in audited["verdicts"]} == {"not-installed"}


@pytest.fixture
def site(tmp_path: Path) -> str:
    """Return the folder of a verl whose version is known, and of which all is missing."""
    return str(unknown_verl(tmp_path / "site"))


def test_audit_takes_a_path_and_plan_counts_the_defects(site: str) -> None:
    data = read("audit", site, code=1)
    assert data == read("audit", "--site", site, code=1)
    states = {one["defect"]: one["state"] for one in data["defects"]}
    assert states["verl.budget-exceeded"] == "unknown-source"
    verdicts = {verdict["patch"]: verdict["verdict"] for verdict in data["verdicts"]}
    assert verdicts["verl.strict-token-budget"] == "unknown-source"
    shown = "".join(overlay("plan", "--site", site).stdout.split())  # a folder may be cut in two
    assert f"(see`overlayaudit--site{site}`)" in shown
    planned = read("plan", "--site", site, code=1)
    assert planned["defects"] == read("audit", "--patches", "all", site, code=1)["defects"]


def test_no_reason_sends_a_reader_to_where_he_is(site: str) -> None:
    (before,) = [one for one in read("plan", "--site", site, code=1)["verdicts"] if one["patch"] == UNKNOWN]
    assert before["reason"].endswith(f"; `overlay explain {UNKNOWN} --site {site}` lists the sites")
    text = " ".join(overlay("explain", UNKNOWN, "--site", site).stdout.split())
    assert "the patch was not tested on this source" in text
    assert "overlay explain" not in text
    # That command knows patches alone, and no defects.
    data = read("audit", site, code=1)["defects"]
    known = {f"overlay explain {patch} --site {site}`" for patch in load_patches()}
    said = [one["reason"] for one in data if "overlay explain" in one["reason"]]
    assert all(any(command in reason for command in known) for reason in said)
    assert any("the patch was not tested" in one["reason"] for one in data if not one["patch"])


def test_exit_codes_of_audit_follow_harm_and_settings(site: str, tmp_path: Path) -> None:
    assert overlay("audit", site).returncode == 1
    found = read("audit", site, "--harm", "hang", code=1)["defects"]
    assert {one["harm"] for one in found} == {"hang"}
    config = tmp_path / "run.sh"
    config.write_text(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.zzz=1 "
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=False\n"
    )
    data = read("audit", site, "--harm", "hang", "--settings", str(config))
    assert [one["settings"]["word"] for one in data["defects"]] == ["not-met"]
    assert "trainer.zzz" in data["settings"]["unknown"]
    text = overlay("audit", site, "--harm", "hang", "--settings", str(config)).stdout
    assert "NOT HIT BY THESE SETTINGS" in text
    assert "use_dynamic_bsz is off, upstream's default" in " ".join(text.split())
    assert "safe" not in text
    for wrong in ("nothing here\n", "\0"):
        config.write_text(wrong)
        assert overlay("audit", site, "--settings", str(config)).returncode == 2


def test_audit_explains_one_defect(site: str) -> None:
    data = read("audit", site, "--explain", "verl.per-token-loss-untold", code=1)
    assert data["finding"]["defect"] == data["defect"]["id"] == "verl.per-token-loss-untold"
    for name, hint in (
        ("verl.per-token-loss", "did you mean verl.per-token-loss-untold"),
        ("foo", "docs/defects.md names all "),
        ("", "there is no defect ''; "),
        (UNKNOWN, f"'{UNKNOWN}' is a patch: `overlay explain {UNKNOWN}`; it fixes verl.budget-"),
    ):
        done = overlay("audit", site, "--explain", name)
        assert (done.returncode, hint in done.stderr) == (2, True)


def test_audit_says_that_pyyaml_is_missing(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Path(site, "verl/trainer/config/sft_trainer_engine.yaml")
    options.parent.mkdir(parents=True)
    options.write_text("trainer: {resume_mode: auto}\n")
    script = tmp_path / "run.sh"
    script.write_text("python -m verl.trainer.main_ppo trainer.resume_mode=auto\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    cli.main(["audit", site, "--settings", str(script)])
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "sft_trainer_engine.yaml, which declares options and defaults, was not read: PyYAML is needed"
        in shown
    )
    assert cli.main(["audit", site, "--settings", str(options)]) == 2
    assert "pip install pyyaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["plan", "--site", "/nowhere/at/all"], {}, "does not exist"),
        (["audit", "--site", __file__], {}, "is neither a folder nor an archive to import from: name a"),
        (["audit", "--site", ""], {}, "does not exist"),
        (["plan", "--patches", ""], {}, "patches is empty"),
        (["audit", "--patches", ""], {}, "patches is empty"),
        (["plan"], {"OVERLAY_PATCHES": ","}, "OVERLAY_PATCHES is empty"),
        (["plan"], {"OVERLAY_PATCHES": "verl.dynamic"}, "OVERLAY_PATCHES: 'verl.dynamic' names no patch"),
        (["explain", "verl.dynamic-cp-los"], {}, "did you mean verl.dynamic-cp-loss"),
        (["list"], {"OVERLAY_PACKS": "A pack"}, "OVERLAY_PACKS: 'A' is not the name of a pack"),
        (["list"], {"OVERLAY_PACKS": "acme"}, "no pack 'acme' is installed"),
        (
            ["lock", "--check", "--file", "/nowhere", "--patches", "verl.*"],
            {},
            "no lock /nowhere: `OVERLAY_PIN= overlay lock --file /nowhere --patches 'verl.*'`",
        ),
        (["lock", "--check", "--update"], {}, "not allowed with"),
        (["run"], {}, "there is no COMMAND"),
        (["run", "--patches"], {}, "expected one argument"),
        (["docter"], {}, "there is no command 'docter'; did you mean `overlay doctor`?"),
        (["--patch", "all"], {}, "no command '--patch'; did you mean `overlay COMMAND --patches`?"),
        (["--zz"], {}, "there is no command '--zz'; `overlay --help` lists them"),
        (["run", "--pin", "", "x"], {}, "--pin is empty"),
        (["plan", "--pathes", "x"], {}, "unrecognized arguments: --pathes"),
    ],
)
def test_what_cannot_be_understood_is_exit_code_2(
    arguments: list[str], environ: dict[str, str], words: str
) -> None:
    done = overlay(*arguments, **environ)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "usage" in done.stderr or done.stderr.count("\n") == 1


def test_a_folder_without_any_upstream_is_said_to_be_one(tmp_path: Path) -> None:
    # The folder above that which was meant, for one.
    done = overlay("audit", "--site", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        f"overlay: no upstream is in {tmp_path}, so nothing was checked: name the folders that have one, "
        "such as a site-packages and each checkout\n"
    )
    assert done.stdout.startswith("nothing was checked")
    # Only what was asked for counts: no companion of it, and no other upstream.
    unknown_verl(tmp_path)
    done = overlay("plan", "--patches", "slime.loss-memory", "--site", str(tmp_path))
    assert done.returncode == 2
    assert f"overlay: no upstream of a selected patch is in {tmp_path}, so nothing" in done.stderr
    # With no patch selected there is none to be missed.
    assert overlay("plan", "--patches", "none", "--site", str(tmp_path)).stderr == ""


def test_an_audit_where_nothing_is_installed_is_no_all_clear() -> None:
    # Of its own: another test of this process may have imported an upstream.
    code = (
        "import sys, sysconfig, packaging.specifiers, packaging.version; from overlay import cli; "
        "alone = [one for one in sys.path if one.startswith(sysconfig.get_path('stdlib'))]; "
        "sys.path[:] = [one for one in alone if 'site-packages' not in one]; sys.exit(cli.main(sys.argv[1:]))"
    )

    words = ("-W", "ignore", "-c", code, "audit")
    done = python(*words)
    assert done.returncode == 2
    assert f"no upstream is installed in {sys.executable}, so nothing was checked" in done.stderr
    assert done.stdout.startswith("nothing was checked")
    assert python(*words, "--explain", "verl.per-token-loss-untold").returncode == 0


def test_the_projects_of_an_image_lie_in_several_folders(tmp_path: Path) -> None:
    for project, file in (("verl", "verl/protocol.py"), ("slime", "slime/utils/seqlen_balancing.py")):
        (tmp_path / project / file).parent.mkdir(parents=True)
        (tmp_path / project / file).write_text("")
    sites = ["--site", str(tmp_path / "verl"), "--site", str(tmp_path / "slime")]
    data = read("audit", *sites, code=1)
    found = {one["patch"].partition(".")[0] for one in data["verdicts"] if one["verdict"] != "not-installed"}
    assert found == {"verl", "slime"}
    assert data["site"] == f"{tmp_path / 'verl'}{os.pathsep}{tmp_path / 'slime'}"


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m overlay list --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)  # noqa: S607
    assert "Traceback" not in done.stderr


def test_output_that_cannot_be_encoded_is_escaped(tmp_path: Path) -> None:
    for name in (os.fsdecode(b"b\xff d"), "na\u00efve"):
        (tmp_path / name).mkdir()
        for arguments in (["audit", "--json"], ["plan"]):
            done = overlay(*arguments, "--site", str(tmp_path / name), PYTHONIOENCODING="ascii")
            assert done.returncode == 2, done.stderr
            assert done.stdout.isascii()
            assert "\\" in done.stdout or arguments == ["plan"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")  # noqa: PTH110
@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"]])
def test_a_full_device_is_exit_code_2(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "overlay", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("overlay: the output cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_is_told_as_by_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "plan", interrupted)
    assert cli.main(["plan"]) == 130
    assert capsys.readouterr().err == "overlay: stopped\n"


def test_a_lock_that_is_checked_for_other_patches_says_which_it_has(tmp_path: Path) -> None:
    file = str(tmp_path / "some.lock")
    assert overlay("lock", "--file", file, "--patches", "verl.metrics").returncode == 0
    done = overlay("lock", "--file", file, "--check")
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "--patches 'verl.metrics' is what was locked"
    assert overlay("lock", "--file", file, "--check", "--patches", "verl.metrics").returncode == 0
