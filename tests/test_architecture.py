"""The rules of the house that a machine can hold."""

from __future__ import annotations

import ast
import importlib.util
import re
import statistics
from pathlib import Path
from types import ModuleType

import pytest
from command_line import python

ROOT = Path(__file__).parents[1]
ROOMS = {"overlay": ROOT / "overlay", "overlay.compat": ROOT / "compat", "overlay.patches": ROOT / "patches"}
UPSTREAMS = ("megatron", "verl", "slime", "torch", "ray", "transformers")


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "scripts/records/house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(room: str) -> list[Path]:
    return sorted(path for path in ROOMS[room].rglob("*.py"))


def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_scripts_reach_into_nothing_of_the_tests_but_what_is_shared() -> None:
    """Tests import from scripts: an arrow back would be a circle."""
    shared = ROOT / "tests" / "shared"
    tests = {path.stem for path in (ROOT / "tests").rglob("*.py") if shared not in path.parents}
    ours = {path.stem for path in (ROOT / "scripts").rglob("*.py")} | {"overlay"}
    for path in (ROOT / "scripts").rglob("*.py"):
        used = {name.partition(".")[0] for name in imports(path)}
        assert not used & (tests - ours), path
        assert (
            not re.search(r"""["']tests["'] */|/ *["']tests["']""", path.read_text())
            or path.name in ("suite.py", "_own_copy.py", "inside.py", "_importing.py")  # run or find them
        ), path


def test_the_engine_names_no_upstream() -> None:
    for path in files("overlay"):
        tree = ast.parse(path.read_text())
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                if (path.name, node.value) == ("effect.py", "torch"):
                    continue  # asked, where it is there already, whether it is compiling what counts
                words = re.findall(r"[a-z]+", node.value.lower())
                said = "Patches for known defects in"  # the description of the whole package may name them
                assert said in node.value or not any(name in words for name in UPSTREAMS[:4]), (
                    path,
                    node.value,
                )


def test_each_room_of_the_engine_answers_a_question(house: ModuleType) -> None:
    modules = house.arrows()
    rooms = house.between_rooms(modules)
    lie_flat = {path.name for path in ROOMS["overlay"].glob("*.py")} - {"__init__.py", "__main__.py"}
    assert lie_flat == {f"{name}.py" for name in (*house.PLACES, "cli", "ray", "testing")}
    for room in rooms:
        assert house.question(room).endswith("?"), room


def test_the_picture_of_the_house_is_the_house(house: ModuleType) -> None:
    """`./scripts/matrix figures CONTRIBUTING.md` draws it again."""
    assert house.picture() in (ROOT / "CONTRIBUTING.md").read_text()


def test_tests_mirror_the_rooms(house: ModuleType) -> None:
    rooms = {room for room in house.between_rooms(house.arrows()) if room not in house.FACE}
    folders = {path.name for path in (ROOT / "tests/overlay").iterdir() if any(path.glob("test_*.py"))}
    # What arms a process is tried on whole processes.
    assert folders == rooms - {"launch"}


def test_files_stay_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for room in ROOMS for path in files(room)}
    assert statistics.median(lengths.values()) <= 200
    assert {path: length for path, length in lengths.items() if length > 600} == {}


#: Starting as a variable does it, and by a call, with what that one may import of what is slow.
STARTS = {
    "from overlay.runtime.process import here; here().arm()": (),
    "import overlay; overlay.enable()": ("ast", "inspect", "typing"),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_start_imports_neither_an_upstream_nor_what_is_slow(start: str) -> None:
    code = f"import sys; old = set(sys.modules); {start}; print(*set(sys.modules) - old)"
    names = python("-c", code).stdout.split()
    slow = {
        "wrapt",
        "packaging",
        "typing",
        "dataclasses",
        "inspect",
        "ast",
        "logging",
        "importlib_metadata",
        "re",
    }
    before = python("-c", "import sys; print(*sys.modules)").stdout.split()
    # Nor a patch or a record: this happens in processes that never train.
    late = ("overlay.desk", "overlay.defect", "overlay.patches.")
    assert not [name for name in names if name.startswith(late)]
    loaded = {name.partition(".")[0] for name in names} - {*before}
    assert loaded & {*UPSTREAMS, *slow} - {*STARTS[start]} == set()


def test_a_plan_imports_no_upstream() -> None:
    loaded = python("-c", "import sys, overlay; overlay.plan(); print(*sys.modules)").stdout.split()
    assert {name.partition(".")[0] for name in loaded} & set(UPSTREAMS) == set()
    assert loaded


def test_no_two_files_of_tests_have_one_name() -> None:
    """They are modules without packages: of two with one name, a run that has both collects neither."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


#: Functions that do the same of what their modules are about, as `lock.read` and `table.read` do.
SHARED = {"add", "add_arguments", "compare", "enable", "main", "read", "write"}


def test_no_two_classes_functions_or_constants_of_the_engine_have_one_name() -> None:
    seen: dict[str, Path] = {}
    for path in files("overlay"):
        for node in ast.parse(path.read_text()).body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            names = [one for one in names if one.isupper()]
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                names = [node.name]
            for name in names:
                if not name.startswith("_") and name not in (*SHARED, "TYPE_CHECKING"):
                    assert seen.setdefault(name, path) == path, name
