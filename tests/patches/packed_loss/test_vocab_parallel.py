"""Log-probability and entropy on logits of any kind, against float64, and what they hold on to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from checks import SEED

from overlay.patches._packed_loss.row_blocks import Rows
from overlay.patches._packed_loss.vocab_parallel import make_log_prob_entropy

torch: Any = pytest.importorskip("torch")


TOLERANCE = 1e-6

compute = make_log_prob_entropy()


class Case:
    """Random logits [1, T, V] with runs of response rows in them."""

    def __init__(self, name: str, *, scale: float = 3.0) -> None:
        draw = random.Random(f"{SEED}/{name}")
        self.made = torch.Generator().manual_seed(draw.randrange(2**31))
        self.vocabulary = draw.randrange(3, 400)
        self.spans, end = [], 0
        for _ in range(draw.randrange(1, 5)):
            start = end + draw.randrange(1, 9)
            end = start + draw.randrange(1, 30)
            self.spans.append((start, end))
        self.leaf = torch.randn(1, end + draw.randrange(6), self.vocabulary, generator=self.made) * scale
        self.targets = torch.randint(self.vocabulary, (self.count,), generator=self.made)
        # Half of the targets are what the model is surest of.
        best = self.rows(self.leaf[0]).argmax(-1)
        self.targets[::2] = best[::2]
        self.temperature = draw.choice([1.0, 0.8, 0.37, 1.7])
        self.height = draw.choice([-1, 1, 3, 1000])

    @property
    def count(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    def rows(self, values: Any) -> Any:
        return torch.cat([values[start:stop] for start, stop in self.spans])

    def weights(self) -> Any:
        return torch.randn(2, self.count, generator=self.made)

    def ask(self, **changed: Any) -> Rows:
        given = {"temperature": self.temperature, "block_rows": self.height, "with_entropy": True}
        return Rows(self.spans, **{**given, **changed})


def reference(case: Case, weights: Any) -> tuple[Any, Any, Any]:
    """Return log-probabilities, entropies and the gradient of all logits in float64."""
    leaf = case.leaf.double().requires_grad_()
    logs = torch.log_softmax(case.rows(leaf[0]) / case.temperature, -1)
    log_prob = logs.gather(1, case.targets[:, None])[:, 0]
    entropy = -(logs.exp() * logs.masked_fill(logs == -torch.inf, 0)).sum(-1)
    (gradient,) = torch.autograd.grad([log_prob, entropy], leaf, list(weights.double()))
    return log_prob.detach(), entropy.detach(), gradient


def close(found: Any, expected: Any, *, least: float = 0.0) -> None:
    """Hold what was found to a relative error, the size of what is expected being its norm."""
    assert found.shape == expected.shape
    same = (found == expected) | (found.isnan() & expected.isnan())
    off = torch.where(same, 0, found.double() - expected).norm()
    size = expected.nan_to_num(0, 0, 0).norm()
    assert off <= TOLERANCE * max(float(size), least), (float(off), float(size), f"seed {SEED}")


def run(case: Case, *, autocast: bool = False) -> tuple[Any, Any, Any]:
    """Hold a case to float64, with logits that are not contiguous, and stay as they are."""
    weights = case.weights()
    wide = torch.empty(1, case.leaf.size(1), 2 * case.vocabulary + 1)
    leaf = wide[..., 1::2].copy_(case.leaf).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        log_prob, entropy = compute(leaf, case.targets, case.ask())
        (gradient,) = torch.autograd.grad([log_prob, entropy], leaf, list(weights))
    expected = reference(case, weights)
    for found, wanted in zip((log_prob, entropy, gradient), expected, strict=True):
        # Where all rows have one entry that is all but certain, entropies are as small as exp(-100).
        close(found, wanted, least=1e-3)
    assert torch.equal(leaf.detach().nan_to_num(), case.leaf.nan_to_num())
    return log_prob.detach(), entropy.detach(), gradient


@pytest.mark.parametrize(("scale", "offset"), [(0.0, 0), (1.0, 0), (3.0, 0), (30.0, 0), (1e4, 0), (1.0, 1e5)])
@pytest.mark.parametrize("index", range(4))
def test_values_and_gradient_against_float64(index: int, scale: float, offset: float) -> None:
    case = Case(f"values/{index}", scale=scale)
    case.leaf += offset
    run(case, autocast=index == 0)


@pytest.mark.parametrize("index", range(4))
def test_each_value_is_accurate_and_not_only_the_largest(index: int) -> None:
    # A row that has nearly all of its probability on one entry: what is left is what counts.
    case = Case(f"sure/{index}", scale=1.0)
    case.leaf[..., 1] += 12
    case.targets[::2] = 1
    case.temperature = 1.0
    log_prob, entropy, gradient = run(case)
    wanted = reference(case, case.weights())
    for found, expected in zip((log_prob, entropy), wanted, strict=False):
        # In float32 such a log-probability is lost: the reference must not lose it either.
        assert (expected.abs() > 1e-8).all()
        assert ((found.double() - expected) / expected).abs().max() < 4 * TOLERANCE, f"seed {SEED}"
    assert gradient.isfinite().all()


@pytest.mark.parametrize("index", range(3))
def test_infinite_logits(index: int) -> None:
    case = Case(f"infinite/{index}")
    masked = torch.rand(case.vocabulary, generator=case.made) < 0.5
    masked[0], masked[1] = False, True
    case.leaf[..., masked] = -torch.inf
    case.targets[0] = 1  # which is impossible
    log_prob, entropy, gradient = run(case)
    assert not gradient.isnan().any()
    assert log_prob[0] == -torch.inf
    assert entropy.isfinite().all()
    # A row of which nothing is possible, and rows with what is no number: no other row has caught it.
    for bad in (-torch.inf, torch.inf, torch.nan):
        broken = Case(f"infinite/{index}")
        line = broken.spans[0][0]
        broken.leaf[0, line, slice(None) if bad == -torch.inf else slice(1)] = bad
        log_prob, _, gradient = run(broken)
        assert log_prob[0].isnan()
        others = torch.arange(gradient.size(1)) != line
        assert gradient[0, others].isfinite().all()


def test_gradcheck() -> None:
    leaf = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 6, 3])
    for entropy_gradient in (True, False):
        rows = Rows([(1, 3), (4, 5)], temperature=0.7, with_entropy=True, entropy_gradient=entropy_gradient)
        assert torch.autograd.gradcheck(lambda x, rows=rows: compute(x, targets, rows), leaf)


def test_a_metric_costs_nothing_and_changes_no_number() -> None:
    case = Case("metric")
    weights = case.weights()
    weights[1] = 0
    found = []
    for entropy_gradient in (True, False):
        leaf = case.leaf.clone().requires_grad_()
        log_prob, entropy = compute(leaf, case.targets, case.ask(entropy_gradient=entropy_gradient))
        assert entropy.requires_grad
        found += torch.autograd.grad(log_prob, leaf, weights[0], retain_graph=True)
        found += torch.autograd.grad([log_prob, entropy], leaf, list(weights))
        close(found[-1], reference(case, weights)[2])
    # Left out of the graph, with a gradient of zero and told so: the same to the last bit.
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0], found[3])


@pytest.mark.parametrize("alone", [0, 1])
def test_without_entropy_or_with_the_entropy_alone(alone: int) -> None:
    case = Case("alone")
    leaf, weights = case.leaf.clone().requires_grad_(), case.weights()
    weights[1 - alone] = 0
    found = compute(leaf, case.targets, case.ask(with_entropy=bool(alone)))
    assert found[1].shape == (case.count * alone,)
    (gradient,) = torch.autograd.grad(found[alone], leaf, weights[alone])
    close(gradient, reference(case, weights)[2])


@pytest.mark.parametrize("spans", [[], [(2, 2)]])
def test_no_rows_are_still_a_part_of_the_graph(spans: Sequence[tuple[int, int]]) -> None:
    leaf = torch.randn(1, 5, 7, requires_grad=True)
    log_prob, entropy = compute(leaf, torch.zeros(0, dtype=torch.long), Rows(spans, with_entropy=True))
    assert log_prob.shape == entropy.shape == (0,)
    (gradient,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), leaf)
    assert torch.equal(gradient, torch.zeros(1, 5, 7))


# --- the gradient in the place of the logits ---


def in_place(case: Case, keep: Any = lambda _logits: None, **changed: Any) -> tuple[Any, Any, bool]:
    """Return the gradient, what it should be, and whether it lies where the logits were."""
    weights = case.weights()
    leaf = case.leaf.clone().requires_grad_()
    logits = leaf.clone()
    where = logits.data_ptr()
    log_prob, entropy = compute(logits, case.targets, case.ask(in_place=True, **changed))
    kept = keep(logits)
    del logits
    (gradient,) = torch.autograd.grad([log_prob, entropy], leaf, list(weights))
    del kept
    return gradient, reference(case, weights)[2], gradient.data_ptr() == where


def test_the_gradient_takes_the_place_of_the_logits() -> None:
    gradient, expected, there = in_place(Case("in place"))
    assert there
    assert not gradient.requires_grad
    close(gradient, expected)


HOLDERS = {
    "a variable": lambda logits: logits,
    "a view": lambda logits: logits[0, 2:],
    "a detached alias": lambda logits: logits.detach(),
    "its storage": lambda logits: logits.untyped_storage(),
    "another node": lambda logits: (logits * logits).sum(),
    "a closure": lambda logits: lambda: logits,
    "numpy": lambda logits: logits.detach().numpy(),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_it_does_not_while_anything_else_holds_them(holder: str) -> None:
    with pytest.warns(UserWarning, match="something else holds them"):
        gradient, expected, there = in_place(Case("held"), HOLDERS[holder])
    assert not there
    close(gradient, expected)


def test_neither_does_it_to_a_parameter() -> None:
    case = Case("needed")
    leaf = case.leaf.clone().requires_grad_()
    with pytest.warns(UserWarning, match="something else holds them"):
        compute(leaf, case.targets, case.ask(in_place=True))[0].sum().backward()
    assert torch.equal(leaf.detach(), case.leaf)


def test_a_second_backward_through_overwritten_logits_is_an_error() -> None:
    case = Case("twice")
    leaf = case.leaf.clone().requires_grad_()
    total = compute(leaf.clone(), case.targets, case.ask(in_place=True))[0].sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


# Dynamo looks at `.grad` of what it resumes with.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiler_leaves_it_alone() -> None:
    """Spans are others in each batch: compiled, the function would be compiled anew for each of them."""
    graphs: list[str] = []

    def backend(graph: Any, _examples: Any) -> Any:
        graphs.extend(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    def around(logits: Any, targets: Any, rows: Rows) -> Any:
        return compute(logits * 2, targets, rows)[0] + 1

    torch.compiler.reset()
    compiled = torch.compile(around, backend=backend)
    for index in range(3):
        case = Case(f"compiled/{index}")
        leaf = case.leaf.clone().requires_grad_()
        found, wanted = (call(leaf, case.targets, case.ask()) for call in (compiled, around))
        pairs = [
            (found, wanted),
            *zip(*(torch.autograd.grad(x.sum(), leaf) for x in (found, wanted)), strict=True),
        ]
        assert all(torch.equal(*pair) for pair in pairs), f"seed {SEED}"
    # What stands around it is compiled, and nothing of it.
    assert {name.rpartition(" ")[2].strip("<>") for name in graphs} == {"mul", "add"}
