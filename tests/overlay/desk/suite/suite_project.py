"""A tiny upstream in a git repository, its tests, a recipe for them, and a pack of patches for it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from command_line import clean
from fake_upstream import write_files

from overlay.desk.suite.report import read
from overlay.source.own_code import of_module
from overlay.source.source import Tree

#: `scale` is wrong, and `offset` right. Nothing imports `other`.
CODE = {
    "fakesuite/__init__.py": "",
    "fakesuite/version.txt": "1.0\n",
    "fakesuite/core.py": """
        def scale(value):
            return value * 2

        def offset(value):
            return value + 1
        """,
    "fakesuite/other.py": """
        def never(value):
            return value
        """,
}

TESTS = {
    "tests/conftest.py": """
        import pytest
        from fakesuite.core import scale  # before the plugins of the run could, if they came late

        @pytest.fixture
        def early():
            return scale
        """,
    "tests/test_mixed.py": """
        import threading
        import pytest
        from fakesuite.core import offset, scale

        def test_same():
            assert True

        def test_won(early):
            assert early(1) == scale(1) == 3, "two and not three"

        def test_lost():
            assert offset(1) == 2

        def test_broken():
            raise RuntimeError(f"broken in {__file__}\\nsecond line")

        def test_threads():
            thread = threading.Thread(target=scale, args=(1,))
            thread.start()
            thread.join()

        @pytest.mark.skip(reason="not today")
        def test_skipped():
            pass

        @pytest.mark.xfail(reason="some day")
        def test_expected():
            assert False

        @pytest.fixture
        def bad():
            yield
            raise OSError("cannot be taken down")

        def test_teardown(bad):
            pass
        """,
    "tests/test_flaky.py": """
        import os

        def test_flaky():
            # The second of four runs fails: the first one under overlay.
            with open(os.environ["FLAKY"], "a+") as file:
                file.write("x")
                file.seek(0)
                assert len(file.read()) != 2
        """,
    "tests/test_nested.py": """
        import subprocess, sys

        def test_nested(tmp_path):
            (tmp_path / "test_inner.py").write_text("def test_inner(): assert False")
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
            assert subprocess.run(command).returncode == 1
        """,
    "tests/test_unimportable.py": """
        import nothing_of_this_name
        """,
    "tests/hang/test_hang.py": """
        import os, subprocess, sys, time

        def test_before():
            pass

        def test_hangs():
            code = "import time; time.sleep(3600)"
            child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
            with open(os.environ["CHILD"], "a") as file:
                file.write(f"{child.pid}\\n")
            time.sleep(3600)

        def test_after():
            pass
        """,
    "tests/crash/test_crash.py": """
        import os
        from fakesuite.core import scale

        def test_before():
            pass

        def test_crashes():
            if scale(1) == 3:
                os.abort()

        def test_after():
            pass
        """,
    "tests/ranks/test_ranks.py": """
        import os
        from fakesuite.core import scale

        def test_all():
            scale(1)

        def test_one_rank_fails():
            assert os.environ["RANK"] != "1", "rank 1"

        def test_one_rank_skips():
            import pytest
            if os.environ["RANK"] == "0":
                pytest.skip("rank 0")
        """,
    # What a launcher of ranks does: it ends all of them as soon as one says that something is wrong.
    "launch.py": """
        import os, subprocess, sys, time

        words = [sys.executable, *sys.argv[1:]]
        environs = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
        ranks = [subprocess.Popen(words, env=environ) for environ in environs]
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                for rank in ranks:
                    rank.kill()
                sys.exit(1)
            time.sleep(0.01)
        """,
}

PATCH = """
    from overlay.effect import effect
    from overlay.patch import Patch, Project, one_target, replaced, variant

    EFFECT = effect(__name__, "value", did="raised")

    def version(read):
        return (read("fakesuite/version.txt") or "").strip() or None

    def make(original, module):
        def NAME(value):
            EFFECT.calls += 1
            EFFECT.changed += 1
            return original(value) + 1
        return NAME

    PROJECT = Project(
        name="fakesuite", distributions=("fakesuite",), marker="fakesuite.core", read_version=version
    )
    PATCH = Patch(
        id="acme/fakesuite.NAME", summary="It", why="Because.", upstream=("fake/suite#1",),
        targets=one_target(PROJECT, variant("1", replaced("SITE", make))),
    )
"""

SITES = {"scale": "fakesuite.core:scale", "offset": "fakesuite.core:offset", "never": "fakesuite.other:never"}

RECIPE = """
    about = "A tiny upstream"
    packages = ["fakesuite"]
    include = ["tests/*.py"]
    time_limit = 60
    tests.from = ["$FAKESUITE_REPO@v1.0"]
    exclude."no tests" = ["tests/conftest.py"]
    # Plugins take longer to import than all else.
    variables.PYTEST_DISABLE_PLUGIN_AUTOLOAD = "1"
"""


class Workplace:
    """A folder with a repository of the tiny upstream, the pack for it, and the command line of overlay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = folder / "repository"
        self.packs = folder / "packs"
        #: What was printed about the last run.
        self.said: dict[str, Any] = {}
        write_files(self.repository, {**CODE, **TESTS})
        self.git("init", "--quiet")
        self.commit("v1.0")
        entry = "[overlay.patches]\nacme = acme_suite.patches\n"
        files = {
            "acme_suite-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-suite\nVersion: 1.0\n",
            "acme_suite-1.0.dist-info/entry_points.txt": entry,
            "acme_suite/__init__.py": "",
            "acme_suite/patches/__init__.py": "",
            "acme_suite/patches/fakesuite/__init__.py": "",
        }
        for name, site in SITES.items():
            text = PATCH.replace("NAME", name).replace("SITE", site)
            files[f"acme_suite/patches/fakesuite/{name}.py"] = text
        write_files(self.packs, files)
        tree = Tree(str(self.repository))
        rows = []
        for name, site in SITES.items():
            row = {
                "patch": f"acme/fakesuite.{name}",
                "target": "fakesuite",
                "sites": {site: tree.digest(site)},
                "code": of_module(f"acme_suite.patches.fakesuite.{name}", Tree(str(self.packs))),
            }
            rows.append({**row, "verdict": "apply", "variant": "1", "shown": "passed"})
        table = {"sources": {}, "rows": rows}
        write_files(self.packs, {"acme_suite/patches/fakesuite/tested.json": json.dumps(table)})

    def git(self, *words: str) -> None:
        """Run a command of git on the repository."""
        names = ("-c", "user.name=A", "-c", "user.email=a@example.invalid", "-c", "commit.gpgsign=false")
        command = ["git", *names, "-C", str(self.repository), *words]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def commit(self, tag: str) -> None:
        """Commit everything, and tag it."""
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", "All")
        self.git("tag", tag)

    def recipe(self, name: str, **keys: str) -> str:
        """Write a recipe with other values of some keys, and return its path."""
        lines = [line for line in textwrap.dedent(RECIPE).splitlines() if line.partition(" ")[0] not in keys]
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join([*(f"{key} = {value}" for key, value in keys.items()), *lines]))
        return str(path)

    def overlay(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `overlay suite`."""
        process = self.start(*words, **environ)
        output, said = process.communicate(timeout=180)
        return subprocess.CompletedProcess(words, process.returncode, output, said)

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start `overlay suite`."""
        given = {
            "FAKESUITE_REPO": str(self.repository),
            "PYTHONPATH": str(self.packs),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "OVERLAY_PACKS": "acme",
            "OVERLAY_PATCHES": "acme/*",
            "FLAKY": str(self.folder / "flaky"),
            "CHILD": str(self.folder / "child"),
            **environ,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "overlay", "suite", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
            env=clean(**given),
        )  # fmt: skip

    def run(self, recipe: str, *words: str, code: int = 0, **environ: str) -> dict[str, Any]:
        """Run a recipe, and return what was printed as JSON about it."""
        done = self.overlay("run", recipe, "--json", *words, **environ)
        assert done.returncode == code, done.stdout + done.stderr
        self.said = json.loads(done.stdout)["runs"][0]
        return self.said

    def outcomes(self, recipe: str, mode: str) -> dict[str, str]:
        """Return the outcome of each test in the first attempt, by the part of its id after the folder."""
        found = read(str(self.folder / "suite-results" / recipe / mode))
        return {name.rpartition("/")[2]: attempts[0][0] for name, attempts in found.items()}
