"""`overlay prove --trust`: what is trusted, what is not, and what becomes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import output_schema
import pytest
from toy_pack import CORE, UNKNOWN, Toy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RIGHT = "toy/toylib.right"
FILE = "overlay.trust"


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    made = Toy(tmp_path)
    made.record("right")
    made.core(UNKNOWN)
    return made


def plan(toy: Toy) -> tuple[str, str]:
    """Return the verdict of a plan, and why."""
    found = json.loads(toy.run("plan", "--patches", RIGHT, "--json", OVERLAY_TRUST=FILE).stdout)
    output_schema.check(found, "plan")
    verdict = next(one for one in found["verdicts"] if one["patch"] == RIGHT)
    return verdict["verdict"], verdict["reason"]


def trust(toy: Toy, *more: str, patch: str = RIGHT) -> tuple[int, str, list[str]]:
    """Return the exit status, why the patch is not trusted, and what was written."""
    done = toy.run("prove", "--trust", patch, "--json", "--seed", "5", *more, OVERLAY_TRUST=FILE)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    output_schema.check(found, "prove --trust")
    return done.returncode, found["trials"][0]["why"], found["written"]


def test_what_is_proven_is_trusted_to_the_letter(toy: Toy) -> None:
    assert toy.run("plan", "--patches", RIGHT).returncode == 1
    assert trust(toy) == (0, "", [RIGHT])
    assert plan(toy)[0] == "apply"
    said = " ".join(toy.run("plan", "--patches", RIGHT, OVERLAY_TRUST=FILE).stdout.split())
    assert "apply toylib 1.2.0 (trusted here: proven on 20" in said
    assert "with seeds 5, 6, 7" in said
    # One byte of syntax more, also where nothing is replaced, and it is unknown again; layout is none.
    toy.core(UNKNOWN.replace("return 1", "return  1 "))
    assert plan(toy)[0] == "apply"
    for text in (
        UNKNOWN.replace("1 +", "2 +"),
        UNKNOWN.replace("return scale(x)", "return scale(x, 2)"),
        CORE + "#",
    ):
        toy.core(text)
        verdict, said = plan(toy)
        assert verdict == ("apply" if text.startswith(CORE) else "unsupported")
        assert "trusted here" not in said
        assert text.startswith(CORE) or "is of another source: toylib.core:" in said
    toy.core(UNKNOWN)
    toy.write("toylib/VERSION", "1.3.0")
    assert "the version of toylib was 1.2.0 then, and is 1.3.0" in plan(toy)[1]


def other_revision(toy: Toy) -> None:
    toy.patch("right", revision=2)


def other_code(toy: Toy) -> None:
    path = toy.folder / "toypack/toylib/right/__init__.py"
    path.write_text(path.read_text().replace("return x * factor", "return factor * x"))


def other_shared_code(toy: Toy) -> None:
    toy.write("toypack/_shared/__init__.py", "X = 1\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_revision, "it is of revision 1 of the patch, and this is 2"),
        (other_code, "the code of the patch is another one by now"),
        (other_shared_code, "the code that patches share is another one by now"),
    ],
)
def test_a_patch_that_has_changed_is_not_trusted(toy: Toy, change: Callable[[Toy], None], said: str) -> None:
    trust(toy)
    change(toy)
    verdict, why = plan(toy)
    assert verdict == "unsupported"
    assert f"is void: {said}: prove it anew with `overlay prove --trust {RIGHT}`" in why


def test_a_weak_contract_is_refused(toy: Toy) -> None:
    for record, said in (
        (
            {"tried": 100, "passed": 11},
            "of 100 changed sources that digests refuse, its contract lets 11 pass (11%;",
        ),
        ({"tried": 19, "passed": 0}, "was measured on 19 changed sources, and 20 are asked"),
        ({"revision": 2}, "was measured with revision 2, and this is 1"),
    ):
        toy.record("right", **record)
        status, why, written = trust(toy)
        assert (status, written) == (1, [])
        assert said in why
    (toy.folder / "toypack/trust.json").unlink()
    assert "on record" in trust(toy)[1]
    assert not (toy.folder / FILE).exists()


@pytest.mark.parametrize(
    ("core", "said"),
    [
        (
            UNKNOWN.replace("factor=2", "factor=3"),
            "toylib.core:scale takes (x, factor=3); the patch was written for",
        ),
        (UNKNOWN.replace("x, factor=2", "y, factor=2"), "toylib.core:scale takes (y, factor=2)"),
        (UNKNOWN.replace("def scale", "async def scale"), "takes async (x, factor=2)"),
        # A setting that no input knows of, and that with the patch would do nothing.
        (
            UNKNOWN.replace("return 1", "import os\n    return 1 if os.environ.get('MORE') else 1"),
            "toylib.core:scale reads 'MORE', .environ, .get, as no source does that the patch was",
        ),
        (
            UNKNOWN.replace("def other", "def another"),
            "toylib.core:other does not exist, which is more than a digest",
        ),
        (UNKNOWN.replace("def scale", "@print\ndef scale"), "is decorated (@print)"),
        ("def scale(:", "toylib.core:scale cannot be checked"),
        (CORE, "apply: "),
        # Upstream has mended it in words of its own: alone it keeps the contract.
        (UNKNOWN.replace("1 + factor * x", "factor * x"), "not shown: upstream alone keeps the contract"),
    ],
)
def test_what_is_not_a_matter_of_digests_alone_is_never_trusted(toy: Toy, core: str, said: str) -> None:
    toy.core(core)
    status, why, written = trust(toy)
    assert said in why
    assert written == []
    assert status == (0 if core == CORE else 1)
    assert not (toy.folder / FILE).exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "ZeroDivisionError"),
        # What the patch would undo of this source.
        ("undoes", "with the patch: wrong: another result than without the patch"),
    ],
)
def test_a_contract_that_does_not_hold_is_not_trusted(toy: Toy, name: str, said: str) -> None:
    toy.record(name)
    status, why, written = trust(toy, patch=f"toy/toylib.{name}")
    assert (status, written) == (1, [])
    assert said in why


def test_the_file_has_to_be_named_and_whole(toy: Toy) -> None:
    done = toy.run("prove", "--trust")
    assert done.returncode == 2
    assert "set OVERLAY_TRUST" in done.stderr
    done = toy.run("plan", "--patches", RIGHT, OVERLAY_TRUST="gone.trust")
    assert done.returncode == 2
    assert "OVERLAY_TRUST='gone.trust' cannot be read" in done.stderr
    trust(toy)
    text = (toy.folder / FILE).read_text()
    for wrong, said in (
        ("[[", "is damaged"),
        (text.replace('"1.2.0"', '"1.3.0"'), "was edited"),
        (text.replace("revision = 1", 'revision = "1"'), "is not of type int"),
        (text.replace("format = 1", "format = 9"), "written by a newer overlay"),
        (text + "\nmore = 1\n", "is damaged"),
    ):
        toy.write(FILE, wrong)
        done = toy.run("plan", "--patches", RIGHT, OVERLAY_TRUST=FILE)
        assert done.returncode == 2, (wrong, done.stdout)
        assert f"OVERLAY_TRUST='{FILE}'" in done.stderr
        assert said in done.stderr
    assert toy.run("prove", "--trust", RIGHT, OVERLAY_TRUST=FILE).returncode == 2
    toy.write(FILE, text)
    assert plan(toy)[0] == "apply"


def test_lock_pin_and_ranks_hold_what_is_trusted(toy: Toy) -> None:
    trust(toy)
    assert toy.run("lock", "--patches", RIGHT, OVERLAY_TRUST=FILE).returncode == 0
    lock = (toy.folder / "overlay.lock").read_text()
    assert "[patch.target.trusted]" in lock
    check = ("lock", "--check", "--patches", RIGHT)
    assert toy.run(*check, OVERLAY_TRUST=FILE).returncode == 0
    without = toy.run(*check)
    assert without.returncode == 1
    assert "toylib trusted source of toylib.core:scale: locked" in without.stdout
    toy.write(
        "job.py",
        "import overlay\n"
        "from overlay.enabling.process import here\n"
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
    assert "(trusted here: proven on" in trusting.stderr or "trusted here: proven on" in trusting.stderr
    facts = {*trusting.stdout.splitlines()} ^ {*plain.stdout.splitlines()}
    # Where it is not trusted, nothing of it is in force.
    assert any(fact.startswith(f"{RIGHT}=revision ") for fact in facts)
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
