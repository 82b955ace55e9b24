"""Versions as PEP 440 has them: whether one lies in a range, or past its end."""

from __future__ import annotations

from overlay.errors import OverlayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from packaging.version import Version


def parse(text: str) -> Version | None:
    """Return a version, `None` if the text is none. Raises `OverlayError` without `packaging`."""
    try:
        from packaging.version import InvalidVersion, Version
    except ImportError as error:
        msg = f"the package `packaging`, by which versions are compared, cannot be imported: {error}"
        raise OverlayError(msg) from error
    try:
        return Version(text)
    except InvalidVersion:
        return None


def contains(versions: str, version: Version) -> bool:
    """Return whether a version lies in a range. Pre-releases count as any other version."""
    from packaging.specifiers import SpecifierSet

    # Without `prereleases=True` the answer for a release candidate depends on the version of packaging.
    return SpecifierSet(versions).contains(version, prereleases=True)


def exceeds(versions: str, version: Version) -> bool:
    """Return whether a version is outside a range for its upper bounds (`<`, `<=`) alone.

    All else that a range says (`>=`, `!=`, `==`, `~=`) is no bound that later versions run into.
    """
    from packaging.specifiers import SpecifierSet

    said = [(word.operator in ("<", "<="), word) for word in SpecifierSet(versions)]
    upper = [word for is_upper, word in said if is_upper]
    others = [word for is_upper, word in said if not is_upper]
    return not all(word.contains(version, prereleases=True) for word in upper) and all(
        word.contains(version, prereleases=True) for word in others
    )


def reached(removal: str | None, version: Version) -> bool:
    """Return whether a version is that of a removal, a pre-release of it, or later."""
    return removal is not None and contains(f">={removal}.dev0", version)
