"""A checkout in which patches are written, an upstream with a defect, and honest answers to a template."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from overlay.authoring.new import Wish, Written, write
from overlay.reading.source import InstalledTree

ROOT = Path(__file__).resolve().parents[3]

#: An upstream whose mean is rounded down.
UPSTREAM = {
    "verl/__init__.py": "",
    "verl/protocol.py": "",
    "verl/version/version": "0.8.0\n",
    "verl/mean.py": "ZERO = 0\ndef mean(values, *, start=ZERO): return sum(values, start) // len(values)\n",
}
SITE = "verl.mean:mean"

#: For what is in the template: what a person would write there.
ANSWERS = {
    "TODO: what is done, in half a line.": "means are not rounded.",
    "TODO: the seam, why it is this one, and what stays as upstream has it.": "All of a small function.",
    "TODO: what it promises, as a property, with shapes and units.": "the sum over the number, a float.",
    'raise NotImplementedError("TODO: what takes its place; the original where upstream is right")': (
        "return sum(values, start) / len(values)"
    ),
    "TODO: one line, what is better with it": "Means that are not rounded down",
    "TODO: sentences: what goes wrong without it, for whom, and what the patch does about it.": (
        "The mean of whole numbers is rounded down, for everybody. With the patch it is that of the numbers."
    ),
    "TODO: the settings under which a job meets the defect.": "Every job that takes a mean.",
    "TODO: what shows that it is exact, or why it is opt-in.": "The mean of one process in float64.",
    "TODO: owner/repo#number": "some/upstream#1",
    "TODO: what must have happened upstream": "a release divides by /",
    "TODO: such as 0.8": "0.8",
    "TODO: of the releases that were tested, such as >=0.8.0.dev0,<0.9.0.dev0": ">=0.8.0.dev0,<0.9.0.dev0",
    "TODO: what upstream gets wrong.": "the mean of whole numbers.",
    "TODO: the property, in half a line.": "means are what they should be.",
    'raise NotImplementedError("TODO: call what the patch replaces, and say what is not right")': (
        "from verl.mean import mean\n\n    return '' if mean([1, 2]) == 1.5 else 'rounded'"
    ),
}
DIGEST = "TODO: what `overlay digest` prints for each release that was tested"


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
        if pack:
            declared = f'[project.entry-points."overlay.patches"]\n{pack} = "{pack}_overlay.patches"\n'
            files = {"pyproject.toml": declared, f"src/{pack}_overlay/__init__.py": ""}
            put(self.checkout, {**files, f"src/{pack}_overlay/patches/__init__.py": ""})
        else:
            patches = self.checkout / "patches"
            put(self.checkout, {"overlay/catalogue/registry.py": "", "tests/test_other.py": ""})
            put(self.checkout, {"patches/__init__.py": "", "patches/verl/__init__.py": ""})
        inside = self.imported / "overlay"
        inside.mkdir(parents=True)
        for path in (ROOT / "overlay").iterdir():
            if path.name != "__pycache__":
                (inside / path.name).symlink_to(path)
        (inside / "compat").symlink_to(ROOT / "compat")
        (inside / "patches").symlink_to(patches)

    def new(
        self, ident: str = "verl.exact-mean", *sites: str, project: str = "", upstream: str = ""
    ) -> Written:
        """Write a patch and its test."""
        return self.write(Wish(id=ident, sites=sites or (SITE,), project=project, upstream=upstream))

    def write(self, wish: Wish) -> Written:
        """Write what somebody wishes for."""
        return write(wish, str(self.checkout), InstalledTree(str(self.upstream)))

    def answers(self) -> dict[str, str]:
        """Return what fills in everything."""
        digest = InstalledTree(str(self.upstream)).digest(SITE)
        assert digest is not None
        return {**ANSWERS, DIGEST: digest}

    def files(self, written: Written) -> list[Path]:
        """Return the files that were written."""
        return [*sorted((self.checkout / written.patch).glob("*.py")), self.checkout / written.test]

    def fill(self, written: Written, answers: dict[str, str]) -> None:
        """Write answers in place of what the template says."""
        for file in self.files(written):
            text = file.read_text()
            for placeholder, answer in answers.items():
                text = text.replace(placeholder, answer)
            file.write_text(text)

    def environ(self) -> dict[str, str]:
        """Return the variables of a process that sees all of it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
        path = [self.imported, self.checkout / "src", self.upstream]
        return {**kept, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}

    def overlay(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout."""
        # Not `-m`, which would look for overlay in the checkout first.
        code = "import sys; sys.path.pop(0); from overlay.cli import main; sys.exit(main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", code, *words], cwd=self.checkout, env={**self.environ(), **environ},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def test(self, *files: Written) -> dict[str, str]:
        """Run the tests of patches as a project does, and return what failed of each, by the patch's id."""
        report = self.imported / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
        command += ["-c", os.devnull, "--rootdir", str(self.checkout), f"--junitxml={report}"]
        done = subprocess.run(
            [*command, *(str(self.checkout / file.test) for file in files)],
            cwd=self.imported, env=self.environ(), capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 -- pytest wrote it
        assert len(cases) == 3 * len(files), done.stdout
        said = {file.id: "" for file in files}
        for case in cases:
            place = case.get("classname", "").replace(".", "/") + ".py"
            (file,) = (file for file in files if place.endswith(file.test))
            for failure in (*case.iter("failure"), *case.iter("error")):
                said[file.id] += f"{case.get('name')}: {failure.get('message')}\n{failure.text}\n"
        assert done.returncode == bool("".join(said.values()))
        return said
