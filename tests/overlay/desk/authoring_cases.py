"""A checkout in which patches are written, an upstream with a defect, and honest answers to a template."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from command_line import clean

from overlay.desk.new import Written, write
from overlay.source.source import InstalledTree

ROOT = Path(__file__).resolve().parents[3]

#: An upstream whose mean is rounded down.
UPSTREAM = {
    "verl/__init__.py": "",
    "verl/protocol.py": "",
    "verl/version/version": "0.8.0\n",
    "verl/mean.py": "ZERO = 0\ndef mean(values, *, start=ZERO): return sum(values, start) // len(values)\n",
}
SITE = "verl.mean:mean"

#: For what is in the templates: what a person would write there.
ANSWERS = {
    "TODO: what is done, in half a line.": "means are not rounded.",
    "TODO: the seam, why it is this one, and what stays as upstream has it.": "All of a small function.",
    "TODO: what is counted, such as step": "mean",
    "TODO: what it promises, as a property, with shapes and units.": "the sum over the number, a float.",
    'raise NotImplementedError("TODO: what takes its place; the original where upstream is right")': (
        "return sum(args[0], kwargs.get('start', module.ZERO)) / len(args[0])"
    ),
    "TODO: one line, what is better with it": "Means that are not rounded down",
    "TODO: sentences: what goes wrong without it, for whom, and what the patch does about it.": (
        "The mean of whole numbers is rounded down, for everybody. With the patch it is that of the numbers."
    ),
    "TODO: the settings under which a job hits the defect.": "Every job that takes a mean.",
    "TODO: what shows that it is exact, or why it is opt-in.": "The mean of one process in float64.",
    "TODO: owner/repo#number": "some/upstream#1",
    "TODO: the property, in half a line.": "means are what they should be.",
    'raise NotImplementedError("TODO: call what the patch replaces, and say what is not right")': (
        "from verl.mean import mean\n\n    return '' if mean([1, 2]) == 1.5 else 'rounded'"
    ),
}
#: Prints what is wrong with the form of each patch, by its id.
FORMS = """
import json
from overlay.desk.lint import faults
from overlay.runtime.loading import load_all
print(json.dumps({name: faults(patch) for name, patch in load_all().items()}))
"""


def put(folder: Path, files: dict[str, str]) -> None:
    """Write files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class Workplace:
    """A folder with a checkout, the upstream, and overlay laid out as it is imported."""

    def __init__(self, folder: Path, pack: str = "") -> None:
        self.checkout = folder / "checkout"
        self.upstream = folder / "upstream"
        self.imported = folder / "imported"
        put(self.upstream, UPSTREAM)
        patches = ROOT / "patches"
        self.pack = pack
        if pack:
            (self.imported / f"{pack}-1.dist-info").mkdir(parents=True)
            points = f"[overlay.patches]\n{pack} = {pack}_overlay.patches\n"
            metadata = f"Metadata-Version: 2.1\nName: {pack}\nVersion: 1\n"
            put(self.imported / f"{pack}-1.dist-info", {"METADATA": metadata, "entry_points.txt": points})
            declared = f'[project.entry-points."overlay.patches"]\n{pack} = "{pack}_overlay.patches"\n'
            files = {"pyproject.toml": declared, f"src/{pack}_overlay/__init__.py": ""}
            put(self.checkout, {**files, f"src/{pack}_overlay/patches/__init__.py": ""})
        else:
            patches = self.checkout / "patches"
            put(self.checkout, {"overlay/source/registry.py": "", "tests/test_other.py": ""})
            projects = ("", "megatron/", "miles/", "slime/", "verl/")
            put(self.checkout, {f"patches/{name}__init__.py": "" for name in projects})
        inside = self.imported / "overlay"
        inside.mkdir(parents=True)
        for path in (ROOT / "overlay").iterdir():
            if path.name != "__pycache__":
                (inside / path.name).symlink_to(path)
        (inside / "compat").symlink_to(ROOT / "compat")
        (inside / "patches").symlink_to(patches)

    def new(self, name: str = "verl.exact-mean", site: str = SITE, **options: str) -> Written:
        """Write a patch."""
        tree = InstalledTree(str(self.upstream))
        return write(name, site, str(self.checkout), tree, **options)

    def files(self, written: Written) -> list[Path]:
        """Return the files that were written."""
        return [self.checkout / file for file in written.files]

    def fill(self, written: Written, answers: dict[str, str]) -> None:
        """Write answers in place of what the template says."""
        for file in self.files(written):
            text = file.read_text()
            for placeholder, answer in answers.items():
                text = text.replace(placeholder, answer)
            file.write_text(text)

    def environ(self) -> dict[str, str]:
        """Return the variables of a process that sees all of it."""
        path = os.pathsep.join(map(str, [self.imported, self.checkout / "src", self.upstream]))
        packs = {"OVERLAY_PACKS": self.pack} if self.pack else {}
        return clean(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **packs)

    def overlay(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout."""
        # Not `-m`, which would look for overlay in the checkout first.
        code = "import sys; sys.path.pop(0); from overlay.cli import main; sys.exit(main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", code, *words], cwd=self.checkout, env={**self.environ(), **environ},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def forms(self) -> dict[str, list[str]]:
        """Return what is wrong with the form of each patch, by its id."""
        done = subprocess.run(
            [sys.executable, "-c", FORMS], cwd=self.imported, env=self.environ(),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, list[str]] = json.loads(done.stdout)
        return found

    def prove(self, written: Written, table: str = "patches/verl/tested.json") -> tuple[int, str, list[str]]:
        """Prove a patch into a table; return the exit status, why not, and the verdicts of the rows."""
        done = self.overlay("prove", written.id, "--write", table, "--judged", "--json")
        assert done.stdout, done.stderr
        (one,) = json.loads(done.stdout)["rows"]
        return done.returncode, "" if one["rows"] else one["why"], [row["verdict"] for row in one["rows"]]
