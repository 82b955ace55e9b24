"""The pins: what they promise, and that they are what the tests run with."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


def requirements(name: str) -> list[Requirement]:
    lines = (SCRIPTS / "environment" / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


PINS = {canonicalize_name(pin.name): pin for pin in requirements("requirements.lock")}


def test_every_pin_is_one_exact_version() -> None:
    assert len(PINS) == len(requirements("requirements.lock"))
    for pin in PINS.values():
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert Version(specifier.version).local is None, f"{pin} is one build of many"
        assert pin.marker is None
        assert pin.url is None


def test_every_requirement_is_pinned() -> None:
    needed = [Requirement(text) for text in metadata.requires("megatron-overlay") or []]
    for wanted in (*requirements("requirements.in"), *needed):
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": "report"}):
            continue  # for another Python than the one that is pinned for
        (pin,) = PINS[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version, prereleases=True), wanted


def test_pins_are_complete() -> None:
    """Nothing that the pinned packages pull in here is left to the day's index."""
    missing = set()
    for distribution in metadata.distributions():
        if canonicalize_name(distribution.name) not in PINS:
            continue
        for text in distribution.requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                missing.add(canonicalize_name(needed.name))
    # A CUDA build of torch pins these itself.
    cuda = re.compile(r"nvidia-|cuda-|triton")
    assert {name for name in missing - PINS.keys() if not cuda.match(name)} == set()


def test_no_index_is_chosen_for_the_user() -> None:
    paths = [path for path in (*SCRIPTS.iterdir(), *SCRIPTS.glob("environment/**/*")) if path.is_file()]
    for path in [path for path in paths if path.suffix != ".pyc"]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(--|PIP_)(extra.)?index.url|--find.links|--trusted.host|(^|\s)-i\s+http", text)
        if path.name.startswith("requirements"):
            assert "://" not in text
            assert not re.search(r"^\s*-", text, re.MULTILINE)
