"""What torch does with a replacement: compiled, scripted, pickled, as an autograd function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from overlay.effect import Figure, effect, told
from overlay.patch import around

if TYPE_CHECKING:
    import torch
    from fake_upstream import Engines, Upstream


else:
    torch = pytest.importorskip("torch")

SOURCE = """
import torch

def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2

class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

class Root(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scale(self.layer(x))

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad

square = Square.apply
"""


def wrap_scale(original: Any, module: Any) -> Any:
    def scale(x: torch.Tensor) -> Any:
        return original(x) * 100

    return scale


def replace_scale(original: Any, module: Any) -> Any:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * 200

    return scale


def wrap_forward(original: Any, module: Any) -> Any:
    def forward(self: Any, x: torch.Tensor) -> Any:
        return original(self, x) + 10

    return forward


def wrap_backward(original: Any, module: Any) -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        return original(ctx, grad) * 7

    return backward


SITES = {
    "fakeup.core:scale": wrap_scale,
    "fakeup.core:Layer.forward": wrap_forward,
    "fakeup.core:Square.backward": wrap_backward,
}


@pytest.fixture
def core(upstream: Upstream, enabled: Engines) -> Any:
    torch.compiler.reset()
    upstream.write(core=SOURCE)
    engine = enabled(upstream.patch(SITES), strict=True)
    loaded = upstream.load()
    assert engine.status().patches[0].state == "applied"
    return loaded


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own tracing
@pytest.mark.parametrize("name", ["root", "callee", "method", "autograd"])
def test_compiled_code_runs_the_patch(core: Any, name: str) -> None:
    """With `fullgraph` and a transparent proxy in place, torch would run the original and say nothing."""

    def through_callee(x: Any) -> Any:
        return core.scale(x) + 0

    calls = {"root": core.scale, "callee": through_callee, "method": core.Root(), "autograd": core.square}
    compiled = torch.compile(calls[name], backend="eager", fullgraph=True)
    x = torch.tensor([1.0], requires_grad=True)
    result = compiled(x).sum()
    expected = {"root": 200, "callee": 200, "method": 2400, "autograd": 1}[name]
    assert result.item() == calls[name](x).item() == expected
    if name == "autograd":
        result.backward()
        assert x.grad is not None
        assert x.grad.item() == 14


COUNTED = effect("fake_compiled", "call", Figure(name="most", says="the most", combine="max"))


def count_scale(original: Any, module: Any) -> Any:
    def scale(x: torch.Tensor) -> Any:
        COUNTED.calls += 1
        COUNTED.changed += x.numel() > 0
        COUNTED.changed = COUNTED.changed + (x == 0).sum()
        COUNTED.most = max(COUNTED.most, x.numel())
        return original(x) * 100

    return scale


@pytest.mark.parametrize("name", ["root", "callee"])
def test_what_counts_is_compiled_once(upstream: Upstream, enabled: Engines, name: str) -> None:
    torch.compiler.reset()
    COUNTED.clear()
    upstream.write(core=SOURCE)
    enabled(upstream.patch({"fakeup.core:scale": count_scale}), strict=True)
    core = upstream.load()
    graphs = []

    def backend(graph: Any, _inputs: object) -> Any:
        graphs.append(graph)
        return graph

    called = {"root": core.scale, "callee": lambda x: core.scale(x) + 0}[name]
    assert called(torch.ones(2))[0] == 200
    assert COUNTED.read() == {"calls": 1, "changed": 1, "most": 2}
    compiled = torch.compile(called, backend=backend, fullgraph=True)
    for _ in range(20):
        assert compiled(torch.ones(2))[0] == 200
    assert len(graphs) == 1
    # It was reached, and how often is not told.
    assert COUNTED.read() == {"calls": 2, "most": 2}
    told_ = told(COUNTED.effect.replace(values=COUNTED.read()))
    assert told_ == "looked at 2 calls; how many it changed is on the device or in compiled code"


def test_functions_that_one_factory_replaces_are_compiled_one_by_one(
    upstream: Upstream, enabled: Engines
) -> None:
    """Torch compiles the same code eight times at the most."""
    torch.compiler.reset()
    names = [f"scale{number}" for number in range(10)]
    upstream.write(core="".join(f"def {name}(x):\n    return x * 2\n\n" for name in names))
    made = around(lambda original, x: original(x) * 100)
    enabled(upstream.patch({f"fakeup.core:{name}": made for name in names}), strict=True)
    core = upstream.load()
    for name in names:
        compiled = torch.compile(getattr(core, name), backend="eager", fullgraph=True)
        assert float(compiled(torch.tensor([1.0]))) == 200


def test_enabling_after_compiling_is_seen_too(upstream: Upstream, enabled: Engines) -> None:
    torch.compiler.reset()
    upstream.write(core=SOURCE)
    core = upstream.load()
    root = core.Root()
    compiled = torch.compile(root, backend="eager", fullgraph=True)
    assert float(compiled(torch.tensor([1.0]))) == 4
    engine = enabled(upstream.patch(SITES))
    assert float(compiled(torch.tensor([1.0]))) == 2400
    engine.disable()
    assert float(compiled(torch.tensor([1.0]))) == 4


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script:DeprecationWarning", "ignore:.*torch.jit:DeprecationWarning"
)
def test_scripted_code_runs_the_patch(upstream: Upstream, enabled: Engines) -> None:
    upstream.write(core=SOURCE)
    enabled(upstream.patch({"fakeup.core:scale": replace_scale}), strict=True)
    scripted = torch.jit.script(upstream.load().scale)
    assert float(scripted(torch.tensor([1.0]))) == 200
