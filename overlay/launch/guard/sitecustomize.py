"""Tells of a Python in which nothing enables overlay as soon as it imports what the job's patches are for.

`overlay run` puts this folder on `PYTHONPATH`. A Python of any environment imports `sitecustomize` as it
starts, after all start-up files; so this uses the standard library only, and no syntax younger than 3.7. If
the job is strict or pinned, the import fails. A `sitecustomize` that the Python has itself runs as well.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

#: The packages, separated by commas.
_NAMES = "OVERLAY_GUARDED"
#: Values that mean no.
_NO = ("", "0", "false", "no", "off")


class Guard:
    """A finder that looks at the import of some packages."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what another finder found, to be looked at as it is executed: some only ask for it."""
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                spec.loader = spec.loader and Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class Loader:
    """The loader of such a package."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def exec_module(self, module: Any) -> None:
        """Execute the module, unless it must not run unpatched. Raises `RuntimeError`."""
        module.__spec__.loader = module.__loader__ = self._original
        process: Any = sys.modules.get("overlay.runtime.process")
        if process is None or not process.here().enabled:
            text = (
                f"overlay is not enabled in {sys.executable}, which imports {module.__name__}. What to do: "
                "install overlay in that Python as well, or have the job start one that has it"
            )
            if _said("OVERLAY_STRICT") or os.environ.get("OVERLAY_PIN", "").strip():
                sys.stderr.write(f"overlay: the job is strict or pinned, and {text}\n")
                raise RuntimeError(text)
            sys.stderr.write(f"overlay: warning: {text}\n")
        self._original.exec_module(module)


def _said(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() not in _NO


def _run_next() -> None:
    """Import the `sitecustomize` that this one hides, as if this one were not there."""
    this = sys.modules.pop(__name__)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, this)


if __name__ == "sitecustomize":
    _startup = sys.modules.get("overlay.launch.startup")
    if _said("OVERLAY") and _said(_NAMES) and not getattr(_startup, "started", False):
        sys.meta_path.insert(0, Guard(os.environ[_NAMES].split(",")))
    _run_next()
