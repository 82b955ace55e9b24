"""Every site that is patched on what is installed here: compiled, pickled, copied, and seen to run the patch.

`python compiler_sites.py PATCH` enables one patch, imports its modules and prints, as JSON, a record for each
site. Whether the patch runs is seen by the frames of an exception: the site is called with arguments that
raise as soon as they are touched, and the traceback goes through the file of the patch. A site that takes no
arguments is watched by a profiler instead. Where the whole has to become one graph, torch traces until such
an argument stops it, and logs the lines that it traces.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import inspect
import io
import json
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import overlay
from overlay.runtime.search import ORIGINAL, OWNER
from overlay.runtime.sites import current, function_of
from overlay.source.registry import load_patches

#: Files that are of a patch.
PATCHES = str(Path(importlib.import_module("overlay.patches").__path__[0]))


class TouchedError(Exception):
    """An argument was touched."""


class Touchy:
    """An argument that raises whatever is done to it."""

    def __getattr__(self, name: str) -> Any:
        raise TouchedError(name)

    def _touched(self, *_: object, **__: object) -> Any:
        raise TouchedError

    __call__ = __iter__ = __len__ = __getitem__ = __bool__ = __int__ = __index__ = __float__ = _touched
    __lt__ = __gt__ = __le__ = __ge__ = __add__ = __radd__ = __sub__ = __mul__ = __truediv__ = _touched


def arguments(function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return an argument for each parameter that must be given, and for those whose default is `None`."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            given.append(Touchy())
        elif parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = Touchy()
        elif parameter.default is parameter.empty:
            given.append(Touchy())
    return given, named


def runs_patch(call: Callable[..., Any], function: Callable[..., Any]) -> bool:
    """Call something, and return whether a call or an exception went through the file of a patch."""
    given, named = arguments(function)
    files: set[str] = set()
    sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename))
    try:
        call(*given, **named)
    except Exception as error:  # noqa: BLE001 -- any will do
        seen: BaseException | None = error
        while seen is not None:  # torch wraps what was raised inside
            frames = traceback.extract_tb(seen.__traceback__)
            if any(frame.filename.startswith(PATCHES) for frame in frames):
                return True
            seen = seen.__cause__ or seen.__context__
    finally:
        sys.setprofile(None)
    return not given and not named and any(file.startswith(PATCHES) for file in files)


def traces_patch(call: Callable[..., Any], function: Callable[..., Any]) -> bool:
    """Call what is compiled into one graph, and return whether lines of a patch were traced for it."""
    importlib.import_module("torch._dynamo.symbolic_convert")
    log = logging.getLogger("torch._dynamo.symbolic_convert.__trace_source")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    given, named = arguments(function)
    try:
        with contextlib.suppress(Exception):  # most cannot be one graph, with such arguments or any
            call(*given, **named)
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    return any(PATCHES in line for line in lines)


def look(site: str, adds: tuple[str, ...]) -> dict[str, Any]:
    """Return what holds of one site."""
    import torch

    module = sys.modules[site.partition(":")[0]]
    parent, raw = current(module, site)
    function = function_of(raw)
    original = getattr(function, ORIGINAL, None)
    found: dict[str, Any] = {"site": site, "owner": str(getattr(function, OWNER, ""))}
    mine = inspect.signature(function)
    kept = [part for part in mine.parameters.values() if part.name not in adds]
    found["signature"] = original is None or list(inspect.signature(original).parameters.values()) == kept
    found["not wrapped"] = not hasattr(function, "__wrapped__") and inspect.unwrap(function) is function
    for name in ("pickle", "cloudpickle"):
        tool = importlib.import_module(name)
        found[name] = pickle.loads(tool.dumps(function)) is function  # noqa: S301 -- it was made here
    file = io.BytesIO()
    torch.save(function, file)
    file.seek(0)
    found["torch.save"] = torch.load(file, weights_only=False) is function
    found["deepcopy"] = copy.deepcopy(function) is function and copy.copy(function) is function
    call = (
        getattr(parent, site.rpartition(":")[2].rpartition(".")[2]) if isinstance(parent, type) else function
    )
    found["eager"] = runs_patch(call, function)
    # `torch.compile` of a method is of the function; of a callee, of what looks the method up again.
    for backend in ("eager", "aot_eager"):
        torch.compiler.reset()
        found[f"root, {backend}"] = runs_patch(torch.compile(call, backend=backend), function)
        torch.compiler.reset()

        def caller(*given: Any, **named: Any) -> Any:
            return call(*given, **named)

        found[f"callee, {backend}"] = runs_patch(torch.compile(caller, backend=backend), function)
    for where, compiled in (("root", call), ("callee", caller)):
        torch.compiler.reset()
        whole = torch.compile(compiled, backend="eager", fullgraph=True)
        found[f"{where}, fullgraph"] = traces_patch(whole, function)
    # What upstream scripts or makes a data class of would be copied by more than what is above.
    scripted = isinstance(original, (torch.jit.ScriptFunction, torch.jit.ScriptModule))
    found["plain"] = not scripted and not dataclasses.is_dataclass(parent)
    return found


def main(name: str) -> None:
    """Print what holds of the sites of one patch."""
    patch = load_patches()[name]
    if name.startswith("slime."):
        from overlay.compat.slime_on_cpu import stand_in

        stand_in()
    elif name == "verl.sft-balance":
        from overlay.compat import verl_imports

        verl_imports.stand_in()
    alone = [] if name == "megatron.agreement" else ["-megatron.agreement"]
    overlay.enable([name, *patch.requires, *alone], strict=False)
    for module in sorted(patch.modules()):
        with contextlib.suppress(ImportError):  # a variant for another release
            importlib.import_module(module)
    (status,) = [status for status in overlay.status().patches if status.patch == name]
    adds = {
        item.site: item.adds
        for target in patch.targets
        for variant in target.variants
        for item in variant.replacements
    }
    found = [
        look(site.site, adds[site.site]) for site in status.sites if site.state in ("applied", "incomplete")
    ]
    sys.stdout.write(
        "\n" + json.dumps({"state": status.state, "reason": status.reason, "sites": found}) + "\n"
    )
    sys.stdout.flush()
    os._exit(0)  # threads of torch's compiler need not be waited for


if __name__ == "__main__":
    main(sys.argv[1])
