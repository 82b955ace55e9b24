"""`megatron.recompute` on a checkpoint of the tests' own, which does what Megatron's does and no more.

Against real releases: the contract, and tests/real/test_recompute_releases.py. With verl's own patch of the
same function: tests/real/test_recompute_verl.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import at_once

from overlay.patches.megatron.recompute import make_backward, make_graphed_backward

torch: Any = pytest.importorskip("torch")
reductions: Any = pytest.importorskip("torch.multiprocessing.reductions")


MODULE = ModuleType("megatron.core.tensor_parallel.random")
SHAPE = (3, 4)


class Checkpoint(torch.autograd.Function):
    """Recompute in the backward: upstream's protocol, without its random states."""

    @staticmethod
    def forward(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
        ctx.run_function = run_function
        with torch.no_grad():
            out = run_function(*args)
        ctx.save_for_backward(*args)
        return out

    @staticmethod
    def backward(ctx: Any, *args: Any) -> Any:
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.run_function(*inputs)
        torch.autograd.backward([out], list(args))
        return (None, *(tensor.grad for tensor in inputs))


STOCK = Checkpoint.backward


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "backward", staticmethod(make_backward(STOCK, MODULE)))


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    return Checkpoint.apply(function, *args)


def source() -> Any:
    """Return [3, 4] that needs a gradient."""
    return torch.arange(1.0, 13.0).reshape(SHAPE).requires_grad_()


def storage(tensor: Any) -> Any:
    return reductions.StorageWeakRef(tensor.untyped_storage())


class Recompute:
    """A layer that keeps what its recomputation saw, like Megatron's token dispatcher."""

    def __init__(self, *, keep: str = "") -> None:
        self.keep = keep
        self.kept: Any = None
        self.seen: list[Any] = []

    def __call__(self, x: Any) -> Any:
        middle = (x * x).tanh()
        if torch.is_grad_enabled():
            self.seen.append(storage(x))
            kept = {
                "": lambda: None,
                "graph": (x * 2.0).sum,
                "input": lambda: x,
                "view": lambda: x[1:],
                "detached": x.detach,
                "side loss": (x * x).sum,
            }
            self.kept = kept[self.keep]()
        return middle * 3.0


def test_the_gradient_is_handed_over_without_a_copy(ours: None) -> None:
    recomputed: list[int] = []
    returned: list[int] = []

    def run(x: Any) -> Any:
        if torch.is_grad_enabled():
            x.register_post_accumulate_grad_hook(lambda leaf: recomputed.append(leaf.grad.data_ptr()))
        return x * 2.0

    out = checkpoint(run, source() * 1.0)
    out.grad_fn.register_hook(lambda grads, _outputs: returned.append(grads[0].data_ptr()))
    out.sum().backward()
    assert recomputed
    assert recomputed == returned


def test_a_tensor_of_a_subclass_is_left_alone(ours: None) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    kept: list[Any] = []

    def run(x: Any) -> Any:
        if torch.is_grad_enabled():
            assert type(x) is TwoTensor
            kept.append(x * 2.0)
        return x * 3.0

    x = TwoTensor(torch.ones(SHAPE), torch.zeros(SHAPE)).requires_grad_()
    checkpoint(run, x).sum().backward()
    (node, _), *_ = kept[0].grad_fn.next_functions
    assert node.variable.shape == SHAPE
    assert node.variable.grad is not None


def test_an_exception_passes_through_and_leaves_the_node_as_it_was(ours: None) -> None:
    kept: list[Any] = []
    failing = True

    def run(x: Any) -> Any:
        if torch.is_grad_enabled():
            kept.append(x)
            if failing:
                raise KeyError("upstream")
        return x * 2.0

    x = source()
    out = checkpoint(run, x * 1.0)
    with pytest.raises(KeyError, match="upstream"):
        out.sum().backward(retain_graph=True)
    assert torch.equal(kept[0], x.detach())
    assert out.grad_fn.run_function is run
    failing = False
    out.sum().backward()
    assert torch.equal(x.grad, torch.full(SHAPE, 2.0))


def test_many_threads_do_not_meet(ours: None) -> None:
    def work(seed: int) -> None:
        for _ in range(20):
            layer = Recompute(keep="graph")
            x = (source().detach() * (seed + 1) / 100).requires_grad_()
            plain = x.detach().clone().requires_grad_()
            checkpoint(layer, x * 1.0).sum().backward()
            Recompute()(plain * 1.0).sum().backward()
            assert torch.equal(x.grad, plain.grad)
            assert layer.seen[0].expired()

    at_once(work, 4)


@pytest.mark.parametrize("capturing", [False, True])
def test_what_a_graph_captures_is_left_to_megatron(capturing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = ModuleType("megatron.core.transformer.cuda_graphs")
    vars(graphs)["is_graph_capturing"] = lambda: capturing
    for name in ("megatron", "megatron.core", "megatron.core.transformer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, graphs.__name__, graphs)
    monkeypatch.setattr(Checkpoint, "backward", staticmethod(make_graphed_backward(STOCK, MODULE)))
    kept: list[Any] = []

    def layer(x: Any) -> Any:
        kept[:] = [x * 2]
        return kept[0] + x

    Checkpoint.apply(layer, torch.ones(SHAPE, requires_grad=True) * 1).sum().backward()
    (leaf,) = (node.variable for node, _ in kept[0].grad_fn.next_functions if hasattr(node, "variable"))
    assert (leaf.numel() > 0) is capturing
    assert (leaf.grad is not None) is capturing


# --- the contract as a property ---

#: What a layer keeps, and whether it is checkpointed inside the one around it.
LAYERS = st.lists(
    st.tuples(st.sampled_from(["", "graph", "input", "view", "detached", "side loss"]), st.booleans()),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(layers=LAYERS, seed=st.integers(0, 2**16))
def test_gradients_and_aliases_are_those_of_the_stock_backward(
    layers: list[tuple[str, bool]], seed: int
) -> None:
    results = []
    for backward in (STOCK, make_backward(STOCK, MODULE)):
        Checkpoint.backward = staticmethod(backward)  # type: ignore[method-assign]
        try:
            results.append(_train(layers, seed))
        finally:
            Checkpoint.backward = staticmethod(STOCK)  # type: ignore[method-assign]
    (gradients, kept, _), (our_gradients, our_kept, freed) = results
    assert all(map(torch.equal, gradients, our_gradients))
    for theirs, mine in zip(kept, our_kept, strict=True):
        assert (theirs is None) == (mine is None)
        if theirs is not None:
            assert torch.equal(theirs, mine)
    for (keep, _), gone in zip(layers, freed, strict=True):
        assert gone == (keep in ("", "graph"))


def _train(layers: list[tuple[str, bool]], seed: int) -> tuple[list[Any], list[Any], list[bool]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SHAPE, generator=generator, requires_grad=True)
    made = [Recompute(keep=keep) for keep, _ in layers]

    def run(index: int, hidden: Any) -> Any:
        """Run the layers from `index` on; a nested one takes the rest of the stack inside it."""
        if index == len(made):
            return hidden
        if layers[index][1]:
            return checkpoint(lambda y: run(index + 1, made[index](y)), hidden)
        return run(index + 1, checkpoint(made[index], hidden))

    run(0, x * 1.0).sum().backward()
    for layer in made:
        if layer.keep == "side loss":
            layer.kept.backward()  # through x * x, which saved the input itself
    gradients = [x.grad, *(layer.kept.grad for layer in made if layer.keep == "input")]
    return gradients, [layer.kept for layer in made], [layer.seen[-1].expired() for layer in made]
