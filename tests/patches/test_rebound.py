"""A function over other names of its module is the same when it is compiled as when it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

from overlay.patches._rebound import rebound

CODE = """
import sys, types
import torch
from overlay.patches._rebound import rebound

SOURCE = '''
def helper(x): return x + 1
def other(x): return helper(x) * 10
def first(x): return helper(x) * 2, other(x)
def second(x): return other(x), helper(x) * 2
'''
module = types.ModuleType("upstream")
sys.modules["upstream"] = module
exec(SOURCE, vars(module))
plain = module.helper
made = rebound(getattr(module, sys.argv[1]), module, helper=lambda x: plain(x) + 100)
x = torch.zeros(1)
found = torch.compile(lambda x: made(x), backend="eager")(x)
print([float(one) for one in found] == [float(one) for one in made(x)], sorted(map(float, found)))
"""


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_compiled_function_has_its_own_names_and_a_neighbour_the_modules(name: str) -> None:
    pytest.importorskip("torch")
    environ = {key: value for key, value in os.environ.items() if key != "TORCHDYNAMO_DISABLE"}
    command = [sys.executable, "-c", CODE, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environ)
    assert done.stdout.strip() == "True [10.0, 202.0]", done.stderr


def test_a_compiler_that_another_thread_is_importing_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("upstream")
    exec("def helper(x): return x + 1\ndef first(x): return helper(x) * 2", vars(module))  # noqa: S102
    made = rebound(module.first, module, helper=lambda x: x + 100)
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    assert made(1) == 202
