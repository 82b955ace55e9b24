"""The packages, found: `overlay/` and, below it once they are installed, `compat/` and `patches/`."""

from tempfile import TemporaryDirectory

from setuptools import find_packages, setup

# Not in `build/`: what setuptools finds there of an earlier version is installed again, with deleted patches.
with TemporaryDirectory() as folder:
    setup(
        packages=[
            *find_packages(include=["overlay", "overlay.*"]),
            *(f"overlay.{name}" for name in find_packages(include=["compat*", "patches*"])),
        ],
        options={"build": {"build_base": folder}},
    )
