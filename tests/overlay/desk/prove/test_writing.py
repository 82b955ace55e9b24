"""`overlay prove --write`: what is written, what is refused, and what becomes of it with `OVERLAY_TRUST`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from toy_pack import CORE, ELSEWHERE, KINDS, MENDED, UNKNOWN, Toy

RIGHT = "toy/toylib.right"
FILE = "here.json"


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    made = Toy(tmp_path)
    made.core(ELSEWHERE)
    return made


def plan(toy: Toy, patch: str = RIGHT) -> tuple[str, str]:
    """Return the verdict of a plan that goes by the file, and why."""
    found = json.loads(toy.run("plan", "--patches", patch, "--json", OVERLAY_TRUST=FILE).stdout)
    verdict = next(one for one in found["verdicts"] if one["patch"] == patch)
    return verdict["verdict"], verdict["reason"]


def wrote(toy: Toy, *more: str, patch: str = RIGHT) -> tuple[int, str, list[str]]:
    """Return the exit status, why nothing was written, and what was."""
    done = toy.run("prove", patch, "--write", FILE, "--json", "--seed", "5", *more or ("--judged",))
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    (one,) = found["rows"]
    assert (toy.folder / FILE).exists() is bool(one["rows"])
    return done.returncode, "" if one["rows"] else one["why"], [row["verdict"] for row in one["rows"]]


def test_what_is_proven_is_believed_for_its_very_sites(toy: Toy) -> None:
    assert toy.run("plan", "--patches", RIGHT).returncode == 1
    assert wrote(toy) == (0, "", ["apply"])
    assert toy.run("plan", "--patches", RIGHT).returncode == 1
    verdict, reason = plan(toy)
    assert verdict == "apply"
    assert re.search(r"proven on 20.* with seeds 5, 6, 7", reason)
    said = " ".join(toy.run("plan", "--patches", RIGHT, OVERLAY_TRUST=FILE).stdout.split())
    assert "apply toylib 1.2.0 (trusted here: proven on 20" in said
    # Layout, a version and what no site is do not matter; one byte of syntax at a site does.
    toy.write("toylib/VERSION", "1.3.0")
    toy.core(ELSEWHERE.replace("scale(x, 2)", "scale( x,2 )") + "more = 1\n")
    assert plan(toy)[0] == "apply"
    for text in (ELSEWHERE.replace("+ 1", "+ 2"), ELSEWHERE.replace("x, 2", "x, 3")):
        toy.core(text)
        verdict, reason = plan(toy)
        assert verdict == "unknown-source"
        assert "has an unknown digest" in reason
        assert "trusted here" not in toy.run("plan", "--patches", RIGHT, OVERLAY_TRUST=FILE).stdout
    toy.core(CORE)
    assert plan(toy) == ("apply", "")


def test_what_is_written_later_of_one_source_replaces_what_was(toy: Toy) -> None:
    wrote(toy)
    first = json.loads((toy.folder / FILE).read_text())
    toy.core(UNKNOWN)
    wrote(toy)
    both = json.loads((toy.folder / FILE).read_text())
    # Void, as the code is another one: it is tried anew.
    contract = toy.folder / "toypack/toylib/right/contract.py"
    contract.write_text(f"{contract.read_text()}\nMORE = 1\n")
    wrote(toy)
    again = json.loads((toy.folder / FILE).read_text())
    assert again["rows"][0] == both["rows"][0] == first["rows"][0]
    assert len(again["rows"]) == len(both["rows"]) == 2
    assert again["rows"][1]["code"] != both["rows"][1]["code"]


def test_what_upstream_has_mended_is_not_needed(toy: Toy) -> None:
    toy.core(MENDED)
    assert wrote(toy) == (0, "", ["not-needed"])
    assert plan(toy)[0] == "not-needed"
    toy.core(ELSEWHERE.replace("return x * factor + 1", "return factor * x"))
    assert plan(toy)[0] == "unknown-source"


def test_what_is_not_there_yet_is_not_needed_and_nothing_is_run(toy: Toy) -> None:
    toy.core("def another(x):\n    return x\n")
    toy.write("toylib/VERSION", "1.1.0")
    assert wrote(toy, patch="toy/toylib.hangs") == (0, "", ["not-needed"])
    assert plan(toy, "toy/toylib.hangs") == ("not-needed", "this source lacks what the patch replaces")


@pytest.mark.parametrize(
    ("core", "said"),
    [
        (UNKNOWN, "this source of toylib.core:scale, which the patch replaces, is new"),
        (ELSEWHERE, "a contract does not notice every change"),
    ],
)
def test_what_a_person_has_to_judge_is_refused_until_it_is_judged(toy: Toy, core: str, said: str) -> None:
    toy.core(core)
    status, why, rows = wrote(toy, "--timeout=100")
    assert (status, rows) == (1, [])
    assert said in why
    assert why.endswith("; read how the source differs, then add --judged")
    assert wrote(toy) == (0, "", ["apply"])
    assert plan(toy)[0] == "apply"


@pytest.mark.parametrize(
    ("core", "name", "said"),
    [
        (UNKNOWN.replace("def other", "def another"), "right", "no variant of it fits toylib 1.2.0 (1: "),
        ("def scale(:", "right", "does not parse"),
        (CORE, "right", "it applies here already"),
        (ELSEWHERE, "raises", "AssertionError"),
        # What the patch would undo of this source.
        (ELSEWHERE, "undoes", "with the patch: wrong: another result than without the patch"),
        (ELSEWHERE, "lacks", "no_such_package is not installed"),
        # A row says three seeds, and one of them does not hold.
        (ELSEWHERE, "seldom", "with the patch: wrong: not with this seed"),
    ],
)
def test_what_cannot_be_tried_or_does_not_hold_writes_nothing(
    toy: Toy, core: str, name: str, said: str
) -> None:
    toy.core(core)
    status, why, rows = wrote(toy, patch=f"toy/toylib.{name}")
    assert (status, rows) == (1, [])
    assert said in why


def test_where_one_fails_the_others_are_written_and_the_command_is_loud(toy: Toy) -> None:
    for name in {*KINDS} - {"right", "undoes"}:
        toy.core(CORE)
        (toy.folder / f"toypack/toylib/{name.replace('-', '_')}/__init__.py").unlink()
    toy.core(ELSEWHERE)
    done = toy.run("prove", "--write", FILE, "--seed", "5", "--judged")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 2 written to here.json" in " ".join(done.stdout.split())
    assert "OVERLAY_TRUST=here.json goes by it" in " ".join(done.stdout.split())
    assert plan(toy)[0] == "apply"
    assert plan(toy, "toy/toylib.undoes")[0] == "unknown-source"


def test_where_nothing_is_to_be_tried_the_command_is_loud_and_says_that_nothing_was_written(toy: Toy) -> None:
    toy.core(CORE)
    done = toy.run("prove", "--write", FILE)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "no patch to be tried here; " in said
    assert said.endswith("; nothing was written")
    assert not (toy.folder / FILE).exists()


def test_a_damaged_file_is_an_error_and_stays_as_it_is(toy: Toy) -> None:
    for text in ("[[", '{"rows": 3}', ""):
        toy.write(FILE, text)
        for done in (
            toy.run("prove", RIGHT, "--write", FILE),
            toy.run("plan", "--patches", RIGHT, OVERLAY_TRUST=FILE),
        ):
            assert done.returncode == 2, done.stdout
            assert "here.json is no table" in done.stderr
        assert (toy.folder / FILE).read_text() == text
    for name in ("gone.json", "/dev/zero"):
        done = toy.run("plan", "--patches", RIGHT, OVERLAY_TRUST=name)
        assert done.returncode == 2
        assert f"{name} cannot be read" in done.stderr
        assert "unset OVERLAY_TRUST" in done.stderr
    assert toy.run("prove", RIGHT, "--write", "/dev/zero").returncode == 2
    done = toy.run("prove", RIGHT, "--judged", "--write", "nowhere/here.json")
    assert done.returncode == 2
    assert "nowhere/here.json cannot be written" in done.stderr


@pytest.mark.parametrize("file", [FILE, "toypack/toylib/tested.json"])
def test_a_row_of_another_code_is_left_out_with_a_warning(toy: Toy, file: str) -> None:
    """Whether it is trusted or lies beside the patches of a pack."""
    toy.write(FILE, '{"rows": []}')
    assert toy.run("prove", RIGHT, "--write", file, "--judged").returncode == 0
    path = toy.folder / "toypack/toylib/right/__init__.py"
    text = path.read_text()
    path.write_text(text.replace("for everybody", "for all people"))
    assert plan(toy)[0] == "apply"
    path.write_text(text.replace("return x * factor", "return factor * x"))
    assert plan(toy)[0] == "unknown-source"
    done = toy.run("plan", "--patches", RIGHT, OVERLAY_TRUST=FILE)
    ignored = re.findall(rf"ignored the rows of {RIGHT} in (\S+): its code has changed since", done.stderr)
    # The row that the toy comes with lies beside it.
    assert [Path(path).name for path in ignored] == ["tested.json", *([FILE] if file == FILE else [])]


def test_lock_pin_and_ranks_hold_what_is_trusted(toy: Toy) -> None:
    wrote(toy)
    assert toy.run("lock", "--patches", RIGHT, OVERLAY_TRUST=FILE).returncode == 0
    lock = (toy.folder / "overlay.lock").read_text()
    assert '"trusted": "yes"' in lock
    check = ("lock", "--check", "--patches", RIGHT)
    assert toy.run(*check, OVERLAY_TRUST=FILE).returncode == 0
    without = toy.run(*check)
    assert without.returncode == 1
    assert "toylib trusted: locked yes, here no" in without.stdout
    toy.write(
        "job.py",
        "import overlay\n"
        "from overlay.runtime.process import here\n"
        "overlay.enable()\n"
        "import toylib.core\n"
        "print(toylib.core.scale(4))\n"
        "facts = sorted(here().statement().facts.items())\n"
        "print(*(f'{name}={value}' for name, value in facts), sep='\\n')\n",
    )
    settings = {"OVERLAY_PATCHES": RIGHT}
    plain, trusting = (toy.python("job.py", **settings, **more) for more in ({}, {"OVERLAY_TRUST": FILE}))
    assert plain.stdout.startswith("9\n")
    assert trusting.stdout.startswith("8\n")
    assert "proven on 20" in trusting.stderr
    facts = {*trusting.stdout.splitlines()} ^ {*plain.stdout.splitlines()}
    # Where it is not trusted, nothing of it is in force.
    assert any(fact.startswith(f"{RIGHT}=in force, variant ") for fact in facts)
    assert any(fact.startswith(f"{RIGHT} source of toylib.core:scale=") for fact in facts)
    assert not any(RIGHT in fact for fact in plain.stdout.splitlines())
    pinned = {**settings, "OVERLAY_PIN": "overlay.lock"}
    assert toy.python("job.py", **pinned, OVERLAY_TRUST=FILE).stdout.startswith("8\n")
    refused = toy.python("job.py", **pinned)
    assert refused.returncode == 1
    assert "PinError" in refused.stderr
    strict = {**settings, "OVERLAY_STRICT": "1"}
    assert toy.python("job.py", **strict, OVERLAY_TRUST=FILE).returncode == 0
    assert "PatchError" in toy.python("job.py", **strict).stderr
