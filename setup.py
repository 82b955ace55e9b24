"""The packages, found: `overlay/` and, below it once they are installed, `compat/` and `patches/`."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["overlay", "overlay.*"]),
        *(f"overlay.{name}" for name in find_packages(include=["compat*", "patches*"])),
    ]
)
