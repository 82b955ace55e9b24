"""The pack of `docs/authoring.md` is proven by the command that the page gives."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from toy_pack import Toy

PAGE = (Path(__file__).resolve().parents[4] / "docs/authoring.md").read_text()
POINTS = "[overlay.patches]\nacme = acme_overlay.patches\n"


def test_the_pack_of_the_guide_is_proven_and_applies(tmp_path: Path) -> None:
    place = Toy(tmp_path)
    place.write("mypackage/__init__.py", "")
    place.write("mypackage/geometry.py", "def area(width, height):\n    return width * width\n")
    files = re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for name, text in files:
        place.write(name, text)
    for folder in ("acme_overlay", "acme_overlay/patches", "acme_overlay/patches/mypackage"):
        place.write(f"{folder}/__init__.py", "")
    assert '"overlay.patches".acme = "acme_overlay.patches"\n' in dict(files)["pyproject.toml"]
    place.write("acme-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    place.write("acme-1.dist-info/entry_points.txt", POINTS)
    (line,) = re.findall(r"^OVERLAY_PACKS=acme overlay (.*)$", PAGE, re.MULTILINE)
    done = place.run(*shlex.split(line), OVERLAY_PACKS="acme")
    assert done.returncode == 0, done.stdout + done.stderr
    proven = place.run("prove", "acme/mypackage.right-area", OVERLAY_PACKS="acme")
    assert "1 proven" in proven.stdout, proven.stdout + proven.stderr
