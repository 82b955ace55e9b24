"""Settings: what the arguments of `enable()` and the environment ask for. `docs/settings.md` has them all."""

from __future__ import annotations

import os

from overlay.errors import SelectionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Environ = Mapping[str, str]

#: The variable by which a process tells its children who has logged the job's configuration.
SAID = "OVERLAY_SAID"
#: The variable by which a Ray driver tells its workers which code it has loaded.
LOADED = "OVERLAY_LOADED"
#: The variable by which `overlay.ray` vouches for the workers of a submitted job: Ray takes none twice.
VOUCHED = "OVERLAY_VOUCHED"
#: The variables that a user sets. Of those further down, tests set one, and overlay sets the others.
VARIABLES = (
    "OVERLAY",
    "OVERLAY_PATCHES",
    "OVERLAY_STRICT",
    "OVERLAY_LOG",
    "OVERLAY_PIN",
    "OVERLAY_PACKS",
    "OVERLAY_TRUST",
    "OVERLAY_LEDGER_DIR",
)
#: Set for a process that runs a contract: `ALONE` leaves the patch out, `COMPANY` enables it beside `all`.
PROVE, ALONE, COMPANY = "OVERLAY_PROVE", "alone", "company"
#: Set for the same process: which run of `overlay prove` it belongs to.
PROVE_RUN = "OVERLAY_PROVE_RUN"
_RESERVED = ("OVERLAY_TEST_SEED", "OVERLAY_SUITE", SAID, LOADED, VOUCHED, PROVE, PROVE_RUN)

#: A value of `OVERLAY_PIN` that begins with this is a digest of so many digits, and not a path.
DIGEST_PREFIX = "sha256:"
_PIN_DIGITS = 64

LOG_LEVELS = ("debug", "info", "warning", "error", "off")

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def check() -> None:
    """Raise `SelectionError` for a value that is not valid. A selection is left out: it takes the patches."""
    armed(), strict(), log_level(), pin(), packs()


def select(
    known: Iterable[str],
    patches: str | Iterable[str] | None = None,
    environ: Environ = os.environ,
    companions: Iterable[str] = (),
    opt_in: Iterable[str] = (),
) -> tuple[str, ...]:
    """Return the ids that a selection names, sorted.

    The terms are those of `patches`, else of `OVERLAY_PATCHES`, else `all`. They apply from left to right; if
    the first one drops patches, it drops them from `all`. `companions` come along with any selection, unless
    a term drops them. `opt_in` are selected by their ids, neither by `all` nor by a glob.

    Raises `SelectionError` for a term that is no string, that matches no patch (it names the nearest ids), or
    that selects what was dropped again without naming it.
    """
    ids = sorted(known)
    by_id = set(opt_in)
    source = "OVERLAY_PATCHES" if patches is None else "patches"
    given = patches is not None or bool(environ.get("OVERLAY_PATCHES"))
    wanted = asked(patches, environ) if given else ["all"]
    if not wanted:
        raise SelectionError(f"{source} is empty: say 'all', 'none', or name patches")
    if wanted == ["none"]:
        return ()
    chosen = set(ids) - by_id if wanted[0].startswith("-") else set()
    dropped: set[str] = set()
    for term in wanted:
        if term == "none":
            raise SelectionError(f"{source}: 'none' does not go with other terms, got {', '.join(wanted)!r}")
        drop = term.startswith("-")
        matched = _matches(term[1:] if drop else term, ids, source)
        if not drop and term not in by_id:
            if matched and matched <= by_id:
                named = ", ".join(sorted(matched))
                raise SelectionError(
                    f"{source}: {term!r} matches only opt-in patches; select them by id: {named}"
                )
            matched -= by_id
        again = sorted(matched & dropped)
        if not drop and again and not matched <= dropped:  # a part of what was dropped may be meant
            raise SelectionError(
                f"{source}: {term!r} selects {again[0]} again: put what is dropped behind it"
            )
        chosen = chosen - matched if drop else chosen | matched
        dropped = dropped | matched if drop else dropped - matched
    return tuple(sorted(chosen | (set(companions) - dropped if chosen else set())))


def asked(patches: str | Iterable[str] | None = None, environ: Environ = os.environ) -> list[str]:
    """Return the terms of a selection as they were given, none if nothing was. Raises `SelectionError`."""
    patches = environ.get("OVERLAY_PATCHES", "") if patches is None else patches
    if isinstance(patches, str):
        return _split(patches)
    try:
        given = list(patches)
    except TypeError:
        given = [patches]  # type: ignore[list-item]
    for term in given:
        if type(term) is not str or _split(term) != [term.strip()]:
            raise SelectionError(f"patches must be patch ids, got {term!r}")
    return [term.strip() for term in given]


def _split(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _one_of(name: str, values: tuple[str, ...], environ: Environ, wrong: str) -> str:
    """Return the value of a variable, one of `values` or empty. Raises `SelectionError`, saying `wrong`."""
    text = environ.get(name, "").strip().lower()
    if text and text not in values:
        raise SelectionError(f"{name}={text!r} {wrong}")
    return text


def strict(value: bool | None = None, environ: Environ = os.environ) -> bool:
    """Return whether strict mode is asked for. Raises `SelectionError` for neither yes nor no."""
    if value is None:
        return _is_on("OVERLAY_STRICT", environ)
    if type(value) is not bool:
        raise SelectionError(f"strict must be True, False or None, got {value!r}")
    return value


def armed(environ: Environ = os.environ) -> bool:
    """Return whether processes are armed as they start. Raises `SelectionError` for neither yes nor no."""
    return _is_on("OVERLAY", environ)


def _is_on(name: str, environ: Environ) -> bool:
    wrong = f"is neither yes ({', '.join(_TRUE)}) nor no ({', '.join(_FALSE)})"
    return _one_of(name, (*_TRUE, *_FALSE), environ, wrong) in _TRUE


def says_no(value: object) -> bool:
    """Return whether the value of a yes-or-no variable means no: an empty one does, `None` is unset."""
    return isinstance(value, str) and value.strip().lower() in ("", *_FALSE)


def pin(environ: Environ = os.environ) -> str:
    """Return what processes are pinned to: a path, `sha256:` and a digest, or nothing.

    Raises `SelectionError` for a malformed digest.
    """
    text = _expanded(environ.get("OVERLAY_PIN", "").strip())
    digest = text.removeprefix(DIGEST_PREFIX)
    if digest != text and (len(digest) != _PIN_DIGITS or not set(digest) <= set("0123456789abcdef")):
        what = f"{_PIN_DIGITS} hexadecimal digits after {DIGEST_PREFIX!r}"
        raise SelectionError(f"OVERLAY_PIN={text!r}: a digest has {what}")
    return text


def trust(environ: Environ = os.environ) -> str:
    """Return the path of the table that `OVERLAY_TRUST` names, or nothing."""
    return _expanded(environ.get("OVERLAY_TRUST", "").strip())


def _expanded(path: str) -> str:
    """Return a path in the user's home for one that begins with `~/`, as a file of variables may have it."""
    return os.path.join(os.path.expanduser("~"), path[2:]) if path.startswith("~/") else path


def current_folder() -> str:
    """Return the folder that this process is in. Raises `SelectionError` if that was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise SelectionError("the current folder no longer exists: cd to one that does") from error


def absolute_paths(environ: Environ = os.environ) -> dict[str, str]:
    """Return the variables of an environment that hold a path, each as an absolute path.

    Raises `SelectionError` if one is relative and the current folder was deleted.
    """
    paths = {"OVERLAY_PIN": pin(environ), "OVERLAY_TRUST": trust(environ)}
    paths["OVERLAY_LEDGER_DIR"] = _expanded(environ.get("OVERLAY_LEDGER_DIR", "").strip())
    return {
        name: os.path.normpath(path if os.path.isabs(path) else os.path.join(current_folder(), path))
        for name, path in paths.items()
        if path and not path.startswith(DIGEST_PREFIX)
    }


def is_alone() -> bool:
    """Return whether this process tries a contract on upstream alone, where no patch is to be enabled."""
    return os.environ.get(PROVE) == ALONE


def in_company() -> bool:
    """Return whether this process tries a contract with every patch that `all` selects."""
    return os.environ.get(PROVE) == COMPANY


def packs(environ: Environ = os.environ) -> tuple[str, ...]:
    """Return the names of the packs to load, sorted. Raises `SelectionError` for an invalid name."""
    names = _split(environ.get("OVERLAY_PACKS", ""))
    for name in names:  # they become part of patch ids
        plain = name.isascii() and name == name.lower() and name.replace("-", "").isalnum()
        if not (plain and name[0].isalpha()):
            msg = f"OVERLAY_PACKS: {name!r} is not the name of a pack: small letters, digits and hyphens"
            raise SelectionError(msg)
    return tuple(sorted(set(names)))


def log_level(environ: Environ = os.environ) -> str:
    """Return the level of the log. Raises `SelectionError` for one that does not exist."""
    wrong = f"is not a level: say {', '.join(LOG_LEVELS)}"
    return _one_of("OVERLAY_LOG", LOG_LEVELS, environ, wrong) or "info"


def unknown(environ: Environ = os.environ) -> list[str]:
    """Return a sentence for each variable that looks like a setting and is none, with the nearest setting."""
    known = (*VARIABLES, *_RESERVED)
    prefix, found = "OVERLAY_", []
    tails = {name.removeprefix(prefix): name for name in VARIABLES}  # with the prefix, all look alike
    for name in sorted(set(environ).difference(known)):
        # A variable `overlay` in small letters may well be another program's.
        if name.startswith(prefix) or (name.upper() in known and "_" in name):
            from difflib import get_close_matches

            near = get_close_matches(name.upper().removeprefix(prefix), tails, n=1)
            hint = f"; did you mean {tails[near[0]]}?" if near else ""
            found.append(f"{name}: unknown variable, ignored{hint}")
    return found


def _matches(term: str, ids: list[str], source: str) -> set[str]:
    if term == "all":
        return set(ids)
    if term in ids:
        return {term}
    if any(char in term for char in "*?["):
        from fnmatch import fnmatchcase

        matched = {name for name in ids if fnmatchcase(name, term)}
        if matched:
            return matched
    pack, slash, _ = term.partition("/")
    gone = pack and slash and not any(name.startswith(f"{pack}/") for name in ids)
    hint = f"to load the pack {pack}, set OVERLAY_PACKS" if gone else nearest(term, ids)
    raise SelectionError(f"{source}: {term!r} names no patch; {hint}")


def nearest(term: str, ids: list[str], listed: str = "`overlay list`") -> str:
    """Return a hint for an unknown id: the nearest ids, else that `listed` names all."""
    from difflib import get_close_matches

    near = get_close_matches(term, ids, n=3)
    if not near:
        tails = {name.partition(".")[2]: name for name in ids}
        near = [tails[tail] for tail in get_close_matches(term, tails, n=3, cutoff=0.5)]
    return f"did you mean {' or '.join(near)}?" if near else f"{listed} names all {len(ids)}"
