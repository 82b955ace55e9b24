"""`overlay new`: what it writes fails until it is filled in, whatever is left out, and passes then."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from authoring_cases import ANSWERS, DIGEST, ROOT, SITE, Workplace, put

from overlay.authoring.new import Wish, Written, write
from overlay.base import toml
from overlay.errors import SelectionError
from overlay.reading.source import InstalledTree

if TYPE_CHECKING:
    from pathlib import Path

XFAIL = """\
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="once this passes, verl.exact-mean has had its day",
)"""


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


#: Answers that are none, and what is said of them.
WRONG = {
    ("mean([1, 2]) == 1.5", "mean([2, 2]) == 2"): "XPASS(strict)",
    ("'' if mean([1, 2]) == 1.5 else 'rounded'", "'always'"): "test_with_the_patch_it_is_right",
    ("/ len(values)", "// len(values)"): "test_with_the_patch_it_is_right",
    ("*, start: Any = module.ZERO", "start: Any = 0"): "PatchError",
    ("make_mean,\n", "make_mean, 'no',\n"): "no digest of a source that was tested",
    ("make_mean,\n", "make_mean, *['0' * 12] or\n"): "has an unknown digest",
    ("CONTRACT = Contract", "PROMISE = Contract"): "contract: contract.py defines no CONTRACT",
    (">=0.8.0.dev0,<0.9.0.dev0", ">=0.9.0.dev0"): "outside the versions that the patch knows",
    (XFAIL, "@pytest.mark.filterwarnings('error')"): "is not marked as one that is expected to fail",
    ("some/upstream#1", "somewhere"): "'somewhere' is neither",
    ("Means that are not rounded down", "Mean"): "summary: one line of",
    (" for everybody. With the patch it is that of the numbers.", ""): "why: sentences of at least",
}


def test_what_is_written_parses_and_fails_with_all_that_is_missing(place: Workplace) -> None:
    written = place.new()
    assert written.patch == "patches/verl/exact_mean"
    assert written.package == "overlay.patches.verl.exact_mean"
    assert written.test == "tests/patches/verl/test_exact_mean.py"
    names = [path.name for path in place.files(written)]
    assert names == ["__init__.py", "contract.py", "fix.py", "test_exact_mean.py"]
    for path in place.files(written):
        ast.parse(path.read_text())
    said = place.test(written)[written.id]
    for test in ("upstream_alone_is_right", "with_the_patch_it_is_right", "the_patch_is_of_the_form"):
        assert f"test_{test}: " in said
    for text in (*ANSWERS, DIGEST):
        assert missing(text) in said


def missing(text: str) -> str:
    """Return what is said of a placeholder that is left."""
    return text[text.index("TODO") :].rstrip('")')


def test_a_placeholder_never_applies(place: Workplace) -> None:
    place.new()
    done = place.overlay("plan", "--json", "--site", str(place.upstream))
    assert done.returncode == 1
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert (verdict["patch"], verdict["verdict"]) == ("verl.exact-mean", "unsupported")


def test_filled_in_it_passes(place: Workplace) -> None:
    written = place.new()
    place.fill(written, place.answers())
    assert place.test(written) == {written.id: ""}


def test_whatever_is_left_out_is_named(place: Workplace) -> None:
    left = {}
    for number, text in enumerate([*ANSWERS, DIGEST]):
        written = place.new(f"verl.exact-mean-{number}")
        place.fill(written, {key: answer for key, answer in place.answers().items() if key != text})
        left[written] = missing(text)
    said = place.test(*left)
    for written, text in left.items():
        assert text in said[written.id]
        assert "test_the_patch_is_of_the_form: " in said[written.id]


def test_an_answer_that_is_none_fails(place: Workplace) -> None:
    wrong = {}
    for number, ((text, answer), words) in enumerate(WRONG.items()):
        written = place.new(f"verl.exact-mean-{number}")
        place.fill(written, place.answers())
        before = "".join(path.read_text() for path in place.files(written))
        shown = text.replace("verl.exact-mean", written.id)
        assert shown in before
        place.fill(written, {shown: answer})
        wrong[written] = words
    said = place.test(*wrong)
    for written, words in wrong.items():
        assert words in said[written.id]


def test_it_is_in_the_style_of_the_house(place: Workplace) -> None:
    long = "a" * 96
    put(
        place.upstream,
        {
            f"verl/{long}.py": "def f(x): ...\n",
            "verl/many.py": (
                "import math\nclass Engine:\n"
                "    def run(self, first, /, second, third=math.pi, *more, fifth=(1, 2), **rest): ...\n"
                "    def mean(self): ...\n"
                "from verl.mean import mean\n"
            ),
        },
    )
    sites = (SITE, "verl.many:Engine.run", "verl.many:Engine.mean", "verl.many:mean", f"verl.{long}:f")
    files = [place.new("verl.many", *sites), place.new("verl.nothing-said"), place.new("verl.x", SITE)]
    names = [str(path.relative_to(place.checkout)) for file in files for path in place.files(file)]
    put(place.checkout, {"pyproject.toml": (ROOT / "pyproject.toml").read_text()})
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *names],
            cwd=place.checkout, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
    text = (place.checkout / "patches/verl/many/fix.py").read_text()
    pi = "third: Any = module.math.pi"
    for parameter in ("        /,", pi, "*more: Any", "fifth: Any = (1, 2)", "**rest: Any"):
        assert parameter in text
    for factory in ("make_mean", "make_engine_mean", "make_many_mean"):
        assert f"def {factory}(" in text


def test_types_are_right(place: Workplace) -> None:
    written = place.new()
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--explicit-package-bases", "--cache-dir", str(place.imported / ".mypy")]
    done = subprocess.run(
        [*command, str(place.imported / "overlay/patches/verl"), str(place.checkout / written.test)],
        cwd=place.imported, env={**place.environ(), "MYPYPATH": str(place.imported), "PYTHONPATH": ""},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


# -- where it goes ---------------------------------------------------------------------------------


def test_a_pack_gets_it_where_its_patches_are(tmp_path: Path) -> None:
    place = Workplace(tmp_path, pack="acme")
    written = place.new()
    assert written.id == "acme/verl.exact-mean"
    assert written.patch == "src/acme_overlay/patches/verl/exact_mean"
    assert (place.checkout / "src/acme_overlay/patches/verl/__init__.py").is_file()
    assert "is not of the form" in place.test(written)[written.id]
    place.fill(written, place.answers())
    assert place.test(written) == {written.id: ""}
    assert place.new("acme/verl.other").id == "acme/verl.other"


def test_the_project_may_be_said_apart(place: Workplace) -> None:
    for project in ("verl", "megatron-core"):
        found = place.new("mean", project=project)
        assert found.id == f"{project.partition('-')[0]}.mean"
    # Of the second, the file is called otherwise: pytest tells files apart by their names.
    assert found.test == "tests/patches/megatron/test_megatron_mean.py"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("some/up#12", "some/up#12"),
        ("https://github.com/some/up/pull/12", "some/up#12"),
        ("https://github.com/some/up/pull/12/files", "some/up#12"),
        ("https://github.com/some/up/issues/12#issuecomment-3", "some/up#12"),
        ("https://github.com/some/up/commit/0123456789", "some/up@0123456789"),
    ],
)
def test_the_reference_stands_in_the_patch(place: Workplace, given: str, meant: str) -> None:
    written = place.new("verl.mean", upstream=given)
    assert f'upstream=("{meant}",)' in (place.checkout / written.patch / "__init__.py").read_text()


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(id=""), "'' is no patch id"),
        (Wish(id="mean"), "'mean' is no patch id"),
        (Wish(id="verl.Mean"), "no patch id"),
        (Wish(id="verl.exact_mean"), "no patch id"),
        (Wish(id="verl.2-means"), "no patch id"),
        (Wish(id="verl.a.b"), "no patch id"),
        (Wish(id="../verl.mean"), "the id of a pack's patch"),
        (Wish(id="acme/verl.mean"), "the id of a pack's patch"),
        (Wish(id="vllm.mean"), "there is no project 'vllm' in overlay.compat.projects; there are: megatron"),
        (Wish(id="verl.mean", project="slime"), "named after another project than 'slime'"),
        (Wish(id="verl.mean", project="verl-core"), "there is no project 'verl-core'"),
        (Wish(id="verl.mean", upstream="12"), "'12' is neither owner/repo#number"),
        (Wish(id="verl.mean", sites=("verl.mean",)), "'verl.mean' is no function here"),
        (Wish(id="verl.mean", sites=("verl.mean:nothing",)), "is no function here"),
        (Wish(id="verl.mean", sites=("verl.nothing:mean",)), "is no function here"),
        (Wish(id="verl.mean", sites=("verl.mean:ZERO",)), "is no function that Python code defines"),
    ],
)
def test_what_cannot_be_understood_writes_nothing(place: Workplace, wish: Wish, words: str) -> None:
    before = sorted(place.checkout.rglob("*"))
    with pytest.raises(SelectionError, match=words.replace("(", r"\(")):
        place.write(wish)
    assert sorted(place.checkout.rglob("*")) == before


@pytest.mark.parametrize(
    "there",
    [
        "patches/verl/exact_mean.py",
        "patches/verl/exact_mean/__init__.py",
        "patches/verl/exact_mean/contract.py",
        "tests/patches/verl/test_exact_mean.py",
    ],
)
def test_nothing_is_overwritten(place: Workplace, there: str) -> None:
    put(place.checkout, {there: "mine"})
    before = sorted(place.checkout.rglob("*.py"))
    with pytest.raises(SelectionError, match=f"{there} is there already, and nothing was written"):
        place.new()
    assert (place.checkout / there).read_text() == "mine"
    assert sorted(place.checkout.rglob("*.py")) == before


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("", "is no checkout of overlay, and none of a pack"),
        ("]", "cannot be read"),
        ("project = 3", r'project.entry-points."overlay.patches" is not a table of texts'),
        ('[project.entry-points."overlay.patches"]\nacme = 3', "is not a table of texts"),
        (
            '[project.entry-points."overlay.patches"]\nacme = "gone.patches"',
            "there is no folder gone/patches",
        ),
        ('[project.entry-points."overlay.patches"]\nA = "a.b"', "'A' is not the name of a pack"),
        ('[project.entry-points."overlay.patches"]\na = "a.b"\nb = "c.d"', "which pack?.*: a, b"),
    ],
)
def test_a_folder_that_is_no_place_for_patches(tmp_path: Path, declared: str, words: str) -> None:
    put(tmp_path, {"pyproject.toml": declared})
    with pytest.raises(SelectionError, match=words):
        write(Wish(id="verl.mean"), str(tmp_path), InstalledTree(str(tmp_path)))


def test_the_command(place: Workplace) -> None:
    done = place.overlay("new", "verl.mean", SITE, "--site", str(place.upstream), "--json")
    assert done.returncode == 0, done.stderr
    test = "tests/patches/verl/test_mean.py"
    assert json.loads(done.stdout) == {
        "id": "verl.mean",
        "patch": "patches/verl/mean",
        "test": test,
        "package": "overlay.patches.verl.mean",
        "listed": False,
    }
    done = place.overlay("new", "verl.mean")
    assert done.returncode == 2
    assert done.stderr == "overlay: patches/verl/mean/__init__.py is there already, and nothing was written\n"
    shutil.rmtree(place.checkout / "patches/verl/mean")
    (place.checkout / test).unlink()
    said = place.overlay("new", "verl.mean").stdout
    assert f"pytest {test}" in said
    assert 'Add "overlay.patches.verl.mean" to packages in pyproject.toml' in said


# -- the list of packages --------------------------------------------------------------------------

LISTED = """\
[tool.setuptools]
packages = [
  "overlay",
  "overlay.patches",
  "overlay.patches.verl",
  "overlay.patches.verl.zeroes",
]
"""


def packages(place: Workplace) -> list[str]:
    data = toml.read(str(place.checkout / "pyproject.toml"))
    return list(data["tool"]["setuptools"]["packages"])


def test_overlays_own_list_gets_the_package_in_its_place(place: Workplace) -> None:
    put(place.checkout, {"pyproject.toml": LISTED})
    assert place.new().listed
    verl = "overlay.patches.verl"
    assert packages(place) == ["overlay", "overlay.patches", verl, f"{verl}.exact_mean", f"{verl}.zeroes"]
    assert place.new("megatron.mean").listed
    # A project's first patch brings the package of the project.
    megatron = "overlay.patches.megatron"
    assert packages(place)[2:4] == [megatron, f"{megatron}.mean"]


@pytest.mark.parametrize(
    "text", ['[tool.setuptools]\npackages = ["overlay"]\n', LISTED.replace('",\n', '" ,\n')]
)
def test_a_list_of_another_form_is_left_to_a_person(place: Workplace, text: str) -> None:
    put(place.checkout, {"pyproject.toml": text})
    assert not place.new().listed
    assert (place.checkout / "pyproject.toml").read_text() == text


def test_the_list_of_a_pack_is_left_to_a_person(tmp_path: Path) -> None:
    place = Workplace(tmp_path, pack="acme")
    # Without a list, setuptools finds packages by itself.
    assert place.new().listed
    file = place.checkout / "pyproject.toml"
    text = file.read_text() + '[tool.setuptools]\npackages = [\n  "acme_overlay.patches",\n]\n'
    file.write_text(text)
    assert not place.new("verl.other").listed
    assert file.read_text() == text


def test_a_contract_is_asked_of_overlays_own_and_not_of_packs(place: Workplace, tmp_path: Path) -> None:
    for at, words in ((place, "contract: the folder has none"), (Workplace(tmp_path / "b", "acme"), "")):
        written = at.new()
        at.fill(written, at.answers())
        contract = at.checkout / written.patch / "contract.py"
        test = at.checkout / written.test
        text = test.read_text()
        name = next(line for line in text.splitlines() if line.endswith("import wrong"))
        test.write_text(
            text.replace(name, contract.read_text().partition("annotations\n")[2].partition("def check")[0])
        )
        contract.unlink()
        said = at.test(written)[written.id]
        assert (words in said) if words else not said


def test_the_commands_of_the_guide_run(place: Workplace) -> None:
    if InstalledTree().source("verl.workers.utils.losses") is None:
        pytest.skip("verl is not installed")
    blocks = re.findall(
        r"^```console\n(.*?)^```$", (ROOT / "docs/authoring.md").read_text(), re.DOTALL | re.MULTILINE
    )
    lines = [shlex.split(line.removeprefix("$ ")) for block in blocks for line in block.splitlines()]
    programs = [program.rpartition("/")[2] for program, *_ in lines]
    assert programs == ["matrix", "overlay", "pytest", "overlay", "matrix"]
    assert (ROOT / lines[0][0]).is_file()
    for _, *words in (lines[1], lines[3]):
        done = place.overlay(*words, PYTHONPATH=str(place.imported))
        assert done.returncode == 0, done.stderr
    written = Written(id=lines[1][2], patch="", test=lines[2][1], package="", listed=True)
    assert "is not of the form" in place.test(written)[written.id]
