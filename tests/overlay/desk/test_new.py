"""`overlay new`: what it writes fails until it is filled in, whatever is left out, and passes then."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import output_schema
import pytest
from authoring_cases import ANSWERS, ROOT, SITE, Workplace, put

from overlay.desk.new import Written, write
from overlay.errors import SelectionError
from overlay.source.source import InstalledTree

#: The files of a patch.
NAMES = ("__init__", "contract")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def test_what_is_written_parses_and_its_form_names_all_that_is_missing(place: Workplace) -> None:
    written = place.new()
    assert written == Written(
        id="verl.exact-mean",
        files=("patches/verl/exact_mean/__init__.py", "patches/verl/exact_mean/contract.py"),
        todo=("./scripts/matrix tested verl.exact-mean --write --judged",),
    )
    for path in place.files(written):
        ast.parse(path.read_text())
    said = "\n".join(place.forms()[written.id])
    for text in ANSWERS:
        assert missing(text) in said


def missing(text: str) -> str:
    """Return what is said of a placeholder that is left."""
    return text[text.index("TODO") :].rstrip('")')


def test_a_placeholder_never_applies_and_is_not_proven(place: Workplace) -> None:
    written = place.new()
    done = place.overlay("plan", "--json", "--site", str(place.upstream))
    assert done.returncode == 1
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert (verdict["patch"], verdict["verdict"]) == ("verl.exact-mean", "unknown-source")
    status, why, rows = place.prove(written)
    assert (status, rows) == (1, [])
    assert "is not filled in: TODO" in why


def test_filled_in_and_proven_it_applies(place: Workplace) -> None:
    written = place.new()
    place.fill(written, ANSWERS)
    assert place.forms() == {written.id: []}
    assert place.prove(written) == (0, "", ["apply"])
    done = place.overlay("prove", written.id, "--json")
    assert [row["verdict"] for row in json.loads(done.stdout)["rows"]] == ["proven"]
    (place.checkout / written.files[-1]).unlink()
    assert ["contract: the folder has none" in one for one in place.forms()[written.id]] == [True]


def test_it_is_in_the_style_of_the_house(place: Workplace) -> None:
    put(place.upstream, {"verl/many.py": "class Engine:\n    def _run(self): ...\n"})
    files = [place.new("verl.many", "verl.many:Engine._run"), place.new("verl.nothing-said", ""), place.new()]
    names = [str(path.relative_to(place.checkout)) for file in files for path in place.files(file)]
    put(place.checkout, {"pyproject.toml": (ROOT / "pyproject.toml").read_text()})
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *names],
            cwd=place.checkout, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
    text = (place.checkout / "patches/verl/many/__init__.py").read_text()
    assert "def make_run(" in text
    assert 'replaced("verl.many:Engine._run", make_run)' in text


def test_types_are_right(place: Workplace) -> None:
    place.new()
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--explicit-package-bases", "--cache-dir", str(place.imported / ".mypy")]
    done = subprocess.run(
        [*command, str(place.imported / "overlay/patches/verl")],
        cwd=place.imported, env={**place.environ(), "MYPYPATH": str(place.imported), "PYTHONPATH": ""},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


# -- where it goes ---------------------------------------------------------------------------------


def test_a_pack_gets_it_where_its_patches_are(tmp_path: Path) -> None:
    place = Workplace(tmp_path, pack="acme")
    written = place.new(pack="acme")
    table = "src/acme_overlay/patches/verl/tested.json"
    assert written.id == "acme/verl.exact-mean"
    assert written.files[0] == "src/acme_overlay/patches/verl/__init__.py"
    assert written.todo == (f"OVERLAY_PACKS=acme overlay prove {written.id} --write {table} --judged",)
    place.fill(written, ANSWERS)
    assert place.forms()[written.id] == []
    assert place.prove(written, table) == (0, "", ["apply"])
    # Its own table is asked, without any setting.
    verdicts = json.loads(place.overlay("plan", "--patches", written.id, "--json").stdout)["verdicts"]
    assert "apply" in {one["verdict"] for one in verdicts if one["patch"] == written.id}
    assert place.new("verl.other", pack="acme").id == "acme/verl.other"
    # A contract is asked of overlay's own patches alone.
    (place.checkout / written.files[-1]).unlink()
    assert place.forms()[written.id] == []


def test_a_pack_is_begun_for_a_project_of_anybodys(tmp_path: Path) -> None:
    put(tmp_path, {"lib/__init__.py": "", "lib/core.py": "def f(x):\n    return x\n"})
    (tmp_path / "new").mkdir()
    tree = InstalledTree(str(tmp_path))
    written = write("lib.f-right", "lib.core:f", str(tmp_path / "new"), tree, pack="my-own")
    assert written.id == "my-own/lib.f-right"
    assert set(written.files) == {
        "pyproject.toml",
        "my_own_overlay/__init__.py",
        "my_own_overlay/patches/__init__.py",
        "my_own_overlay/patches/lib/__init__.py",
        "my_own_overlay/patches/lib/f_right/__init__.py",
        "my_own_overlay/patches/lib/f_right/contract.py",
    }
    assert written.todo[0].startswith("pip install ")
    declared = (tmp_path / "new/pyproject.toml").read_text()
    assert '[project.entry-points."overlay.patches"]\nmy-own = "my_own_overlay.patches"\n' in declared
    project = (tmp_path / "new/my_own_overlay/patches/lib/__init__.py").read_text()
    assert 'PROJECT = Project(name="lib", distributions=("lib",), marker="lib")' in project


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "site", "options", "words"),
    [
        *((name, SITE, {}, "is no patch id") for name in ("", "mean", "verl.Mean", "verl.a_b", "verl.2-a")),
        *((name, SITE, {}, "is no patch id") for name in ("verl.a.b", "../verl.mean", "acme/verl.mean")),
        ("verl.mean", SITE, {"pack": "acme"}, "this is the checkout of overlay itself"),
        ("vllm.mean", SITE, {}, "there is no project 'vllm'; there are megatron"),
        ("verl.mean", "verl.mean", {}, "'verl.mean' is no function: name one as"),
        ("verl.mean", "verl.mean:nothing", {}, "verl.mean defines no nothing"),
        ("verl.mean", "verl.nothing:mean", {}, "there is no verl.nothing; install verl, or"),
        ("verl.mean", "absent.mean:mean", {}, "there is no absent; install absent, or"),
        ("verl.mean", "verl.mean:ZERO", {}, "is no function that Python code defines"),
    ],
)
def test_what_cannot_be_understood_writes_nothing(
    place: Workplace, name: str, site: str, options: dict[str, str], words: str
) -> None:
    before = sorted(place.checkout.rglob("*"))
    with pytest.raises(SelectionError, match=re.escape(words)):
        place.new(name, site, **options)
    assert sorted(place.checkout.rglob("*")) == before


@pytest.mark.parametrize(
    "there", ["patches/verl/exact_mean.py", *(f"patches/verl/exact_mean/{name}.py" for name in NAMES)]
)
def test_nothing_is_overwritten(place: Workplace, there: str) -> None:
    put(place.checkout, {there: "mine"})
    before = sorted(place.checkout.rglob("*.py"))
    with pytest.raises(SelectionError, match=f"{there} exists already, so nothing was written"):
        place.new()
    assert (place.checkout / there).read_text() == "mine"
    assert sorted(place.checkout.rglob("*.py")) == before


@pytest.mark.parametrize(
    ("there", "pack", "words"),
    [
        ("", "", "is not a checkout of overlay: name your pack with --pack NAME"),
        ("", "A", "'A' is not the name of a pack"),
        ("pyproject.toml", "acme", "pyproject.toml exists already, so nothing was written"),
    ],
)
def test_a_folder_that_is_no_place_for_patches(tmp_path: Path, there: str, pack: str, words: str) -> None:
    if there:
        put(tmp_path, {there: ""})
    with pytest.raises(SelectionError, match=re.escape(words)):
        write("verl.mean", "", str(tmp_path), InstalledTree(str(tmp_path)), pack=pack)


def test_the_command(place: Workplace) -> None:
    done = place.overlay("new", "verl.mean", SITE, "--site", str(place.upstream), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    output_schema.check(found, "new")
    assert found["files"] == ["patches/verl/mean/__init__.py", "patches/verl/mean/contract.py"]
    done = place.overlay("new", "verl.mean")
    assert done.returncode == 2
    assert done.stderr == "overlay: patches/verl/mean/__init__.py exists already, so nothing was written\n"
    shutil.rmtree(place.checkout / "patches/verl/mean")
    said = place.overlay("new", "verl.mean").stdout
    assert "./scripts/matrix tested verl.mean --write --judged" in said


def test_the_commands_of_the_guide_run(place: Workplace) -> None:
    if InstalledTree().source("verl.workers.utils.losses") is None:
        pytest.skip("verl is not installed")
    blocks = re.findall(
        r"^```console\n(.*?)^```$", (ROOT / "docs/authoring.md").read_text(), re.DOTALL | re.MULTILINE
    )
    lines = [shlex.split(line.removeprefix("$ ")) for block in blocks for line in block.splitlines()]
    programs = [program.rpartition("/")[2] for program, *_ in lines]
    assert programs == ["overlay"]
    done = place.overlay(*lines[0][1:], PYTHONPATH=str(place.imported))
    assert done.returncode == 0, done.stderr
    assert place.forms()[lines[0][2]]
