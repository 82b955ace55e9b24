"""What the start-up file in site-packages calls in every Python process of a job.

It runs before user code and before the path is complete: the folder of the script is not on it yet, nor what
start-up files with later names add. So nothing of an upstream is looked for here; that waits for its import.

`site` swallows what a start-up file raises. A process that must not go on is therefore ended here.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

#: Whether it has run: in a venv, Python reads start-up files twice.
started = False

#: The variable by which Ray tells a worker what to call before its first task. If that raises, Ray ends the
#: worker, and the task or the actor that it was started for fails with what was raised.
_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
#: Why this process, a worker of Ray, must not work.
_refusal = ""

#: Values that mean no. They stand here too, because `overlay.model.settings` may be the part that is broken.
_NO = ("", "0", "false", "no", "off")


class _Last:
    """A finder that enables overlay when all start-up files have run: they may lead to its packs."""

    def find_spec(self, name: str, *_: object) -> None:
        """Find nothing. `site` imports `sitecustomize` at its end, whether there is one or not."""
        if name == "sitecustomize" or not _is_early():
            sys.meta_path.remove(self)
            _enable()


def _is_early() -> bool:
    """Return whether `site` is still reading start-up files."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 -- nothing else tells
    while frame is not None and not (
        frame.f_code.co_name == "main" and frame.f_globals["__name__"] == "site"
    ):
        frame = frame.f_back
    return frame is not None and "sitecustomize" not in sys.modules


def _has_packs() -> bool:
    """Return whether the packs can be loaded already, with what they import."""
    try:
        from overlay.runtime.engine import load_all

        return bool(load_all())
    except Exception:  # noqa: BLE001 -- what is wrong is said when it is enabled
        return False


def start() -> None:
    """Enable overlay if the environment asks for it.

    An error is one line on standard error, and the end of the process if it is pinned or strict. That holds
    for an overlay of which parts are missing as well.
    """
    waits = any(type(finder) is _Last for finder in sys.meta_path)
    if started or waits or _says_no("OVERLAY"):
        return
    if os.environ.get("OVERLAY_PACKS") and _is_early() and not _has_packs():
        sys.meta_path.insert(0, _Last())
    else:
        _enable()


def _enable() -> None:
    global started  # noqa: PLW0603 -- once per interpreter is what it is about
    started = True
    known: tuple[type[Exception], ...] = ()
    try:
        from overlay.errors import OverlayError
        from overlay.launch.ray_jobs import RAY
        from overlay.launch.spawned import SPAWNED
        from overlay.model import settings
        from overlay.runtime.process import here

        known = (OverlayError,)
        if settings.armed():
            here().arm(at_start=True)
            RAY.watch()
            SPAWNED.watch(adds=False)
    except Exception as error:  # noqa: BLE001 -- an interpreter must start, whatever is wrong with overlay
        text = str(error) if isinstance(error, known) else f"{type(error).__name__}: {error}"
        # Strict mode with a value that is neither yes nor no counts as on: somebody meant to set it.
        stop = bool(os.environ.get("OVERLAY_PIN", "").strip()) or not _says_no("OVERLAY_STRICT")
        text = f"overlay: {'this process is stopped' if stop else 'NOT enabled'}: {text}"
        _say(f"{text}\n")
        if stop and not _left_to_ray(text):
            os._exit(1)
        _say_again_at_exit(f"{text}\n")


def refuse() -> None:
    """Raise if this worker of Ray was refused at its start, or has not been enabled there as it should.

    Ray calls it before the first task, in all workers of a strict or pinned job. If a worker has other code
    than the driver, it raises in a pinned job, and warns in a strict one.
    """
    if _refusal or not started:
        raise RuntimeError(_refusal or f"overlay is not enabled at the start of {sys.executable}")
    from overlay.model import settings
    from overlay.runtime.driver import difference
    from overlay.runtime.process import here

    if settings.pin() and (text := difference()):
        raise RuntimeError(text)
    here().job_log.compare_with_driver()


def _left_to_ray(text: str) -> bool:
    """Return whether this is a worker of Ray, which Ray will end by `refuse`.

    A worker that ends at its start is started again for ever, and the driver waits. A Ray whose code does not
    name that variable would not call it.
    """
    global _refusal  # noqa: PLW0603 -- of the process
    worker = next((word for word in sys.orig_argv if os.path.basename(word) == "default_worker.py"), "")
    constants = os.path.join(os.path.dirname(os.path.dirname(worker)), "ray_constants.py")
    try:
        for file, name in ((worker, "WORKER_PROCESS_SETUP_HOOK_ENV_VAR"), (constants, _HOOK)):
            with open(file, encoding="utf-8") as stream:
                if name not in stream.read():
                    return False
    except (OSError, ValueError):  # no worker, or no file to be read
        return False
    _refusal = text
    os.environ[_HOOK] = f"{__name__}.refuse"
    return True


def _say_again_at_exit(text: str) -> None:
    """Say at the end of a job what has scrolled away: rank 0 does, if it has imported an upstream."""
    import atexit

    def say() -> None:
        try:
            from overlay.source.registry import awaited

            if not awaited()[0].isdisjoint(sys.modules):
                _say(text)
        except Exception:  # noqa: BLE001, S110 -- an overlay with parts missing: it was said at the start
            pass

    if os.environ.get("RANK", "0").strip() in ("", "0"):
        atexit.register(say)


def _says_no(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _NO


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 -- closed, or full: what stops a process must not depend on it
        pass
