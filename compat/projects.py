"""The upstream projects that patches name, and how each of them tells its version."""

from __future__ import annotations

from overlay.patch import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import ReadFile


def _megatron_version(read: ReadFile) -> str | None:
    """Compose the version from the literals of `package_info.py`.

    The module itself appends the git revision when it is imported; the literals are the same either way.
    """
    from overlay.compat.environment import literals

    parts = literals(read("megatron/core/package_info.py"))
    try:
        return f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCH']}{parts['PRE_RELEASE']}"
    except KeyError:
        return None


def _verl_version(read: ReadFile) -> str | None:
    text = read("verl/version/version")
    return text.strip() if text else None


def _version_in_setup(name: str, read: ReadFile) -> str | None:
    """Read the version in the `setup.py` beside a package that is run from a checkout, `None` if it is odd.

    It is what the checkout calls itself, which is not always its tag: slime v0.1.0 says 0.0.1, v0.2.4 says
    0.2.3.
    """
    import ast

    from overlay.source.unwarned import parse

    try:
        tree = parse(read(f"{name}/../setup.py") or "", "setup.py")
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "setup":
            continue
        said = {word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)}
        if said.get("name") == name and isinstance(said.get("version"), str):
            return str(said["version"])
    return None


def _slime_version(read: ReadFile) -> str | None:
    """Read slime's version. Without a `setup.py`, a release is told by its source."""
    if read("slime/../setup.py") is None:
        from overlay.compat.slime_releases import RELEASES, fingerprint

        return RELEASES.get(fingerprint(read))
    return _version_in_setup("slime", read)


def _miles_version(read: ReadFile) -> str | None:
    return _version_in_setup("miles", read)


MEGATRON = Project(
    name="megatron-core",
    distributions=("megatron-core",),
    marker="megatron.core.package_info",
    read_version=_megatron_version,
)

VERL = Project(name="verl", distributions=("verl",), marker="verl.protocol", read_version=_verl_version)

SLIME = Project(
    name="slime",
    distributions=("slime",),
    marker="slime.utils.seqlen_balancing",
    read_version=_slime_version,
    beside=("slime_plugins",),
)

#: A fork of slime with a training side of its own.
MILES = Project(
    name="miles",
    # The second is what the package index has: `miles` beside a `megatron` and an `sglang` of its own.
    distributions=("miles", "miles-rl"),
    marker="miles.utils.seqlen_balancing",
    read_version=_miles_version,
)
