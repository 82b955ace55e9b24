"""Log-probability and entropy of rows of vocabulary-parallel logits, with O(rows) state.

Each rank of the tensor parallel group has V entries of a row of logits x. M is the largest entry of the whole
row and u = (x - M) / temperature. The maximum's own term, exactly 1, is left out of the sum of exponentials:

    rest = sum(exp(u)) - 1      log_prob = u[target] - log1p(rest)
    mean = -sum(p * u) >= 0     entropy  = log1p(rest) + mean

No terms cancel, so a row with all its probability on one entry is as accurate as any. The forward keeps M,
the rest, the mean and the target of each row; the backward computes u again, in the rows of the gradient:

    d log_prob / dx = (1[target] - p) / temperature      d entropy / dx = -p * (u + mean) / temperature
"""

from collections.abc import Callable
from typing import Any

from overlay.patches._packed_loss.row_blocks import Rows, local_terms, numbers, write_rows
from overlay.patches._packed_loss.sole_holder import make_sole_holder

_HELD = "the logits cannot be overwritten by their gradient: something else holds them, or it cannot be told"


def make_log_prob_entropy() -> Callable[[Any, Any, Rows], tuple[Any, Any]]:
    """Build `log_prob_entropy(logits, targets, rows)`.

    It takes logits [..., V] of this rank's part of the vocabulary, all but the last dimension of which are
    rows, and the targets [R] of the R `rows`, as indices of the whole vocabulary. It returns
    log-probabilities [R] and entropies [R] ([0] without entropy) in the dtype of the logits. All ranks of the
    group must call it with the same rows. The backward has no collective, and its only tensor of full size is
    the gradient.
    """
    import warnings

    import torch
    from torch.autograd.function import once_differentiable

    sole_holder = make_sole_holder()

    class LogProbEntropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any, targets: Any, rows: Rows) -> tuple[Any, Any]:
            ctx.set_materialize_grads(False)
            ctx.rows = rows
            flat = logits.view(-1, logits.size(-1))
            line = numbers(rows.spans, logits.device)
            rank, size = (0, 1) if rows.group is None else (rows.group.rank(), rows.group.size())
            local = targets.to(logits.device) - rank * flat.size(1)
            here = (local >= 0) & (local < flat.size(1))
            column = torch.where(here, local, 0)
            target = torch.where(here, flat[line, column].double(), 0)
            terms = local_terms(flat, len(line), rows)
            top, rest, mean, at = _reduce(terms, target, here, rows, size)
            log_sum = torch.log1p(rest)
            log_prob = at - log_sum
            entropy = (log_sum + mean if rows.with_entropy else log_sum[:0]).to(logits.dtype)
            if not rows.with_entropy:
                ctx.mark_non_differentiable(entropy)
            ctx.save_for_backward(logits, top, rest, mean, at, log_prob, line, column, here)
            return log_prob.to(logits.dtype), entropy

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, of_log_prob: Any, of_entropy: Any) -> tuple[Any, None, None]:
            logits, top, rest, mean, at, log_prob, line, column, here = ctx.saved_tensors
            rows: Rows = ctx.rows
            if rows.in_place and sole_holder(logits):
                grad = logits.detach()
            else:
                if rows.in_place:
                    warnings.warn(_HELD, stacklevel=2)
                grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
            constant = torch.zeros_like(rest) if of_log_prob is None else of_log_prob.double()
            # Of the target itself, where 1 - p would cancel in the dtype of the logits.
            exact = -torch.expm1(log_prob) * constant
            scale = -1 / (rows.temperature * (1 + rest))
            slope = None
            # A metric that a coefficient of zero keeps in the graph: its gradient is exactly zero.
            if of_entropy is not None and (rows.entropy_gradient or bool(of_entropy.any())):
                through = of_entropy.double()
                constant = constant + through * mean
                slope = through * scale
                p = log_prob.exp()
                # Where p is zero, u is -inf or as good as that.
                exact = exact - torch.where(p == 0, p, p * (at + mean)) * through
            flat, out = logits.view(-1, logits.size(-1)), grad.view(-1, grad.size(-1))
            write_rows(flat, out, top, constant * scale, slope, rows)
            exact = (exact / rows.temperature).to(out.dtype)
            out[line, column] = torch.where(here, exact, out[line, column])
            return grad, None, None

    def log_prob_entropy(logits: Any, targets: Any, rows: Rows) -> tuple[Any, Any]:
        log_prob, entropy = LogProbEntropy.apply(logits, targets, rows)
        return log_prob, entropy

    # A compiler would go through blocks and spans, which are others in each batch, and not all torch can.
    compiler: Any = torch.compiler
    left_out: Callable[[Any, Any, Rows], tuple[Any, Any]] = compiler.disable(log_prob_entropy)
    return left_out


def _reduce(
    terms: tuple[Any, Any, Any], target: Any, here: Any, rows: Rows, size: int
) -> tuple[Any, Any, Any, Any]:
    """Put the terms of `size` ranks together, in two collectives.

    `terms` are this rank's `local_terms`; `target` [R] is the logit of each target in float64 where it is
    this rank's, as `here` [R] says. Returns M [R] in the dtype of the logits, and the rest, the mean and u of
    the target [R] in float64.
    """
    import torch

    own, rest, weighted = terms
    shared, top = size > 1 and len(own) > 0, own
    if shared:
        top = own.clone()
        torch.distributed.all_reduce(top, op=torch.distributed.ReduceOp.MAX, group=rows.group)
    # A rank whose entries are all -inf has no part in the sum.
    some = own != -torch.inf
    below = torch.where(some, (own.double() - top.double()) / rows.temperature, 0)
    share = torch.where(some, below.exp(), 0)
    rest = torch.where(some, rest.double(), 0)
    sums = [rest * share, share, torch.where(here, target - top.double(), 0)]
    if rows.with_entropy:
        # Where the share is zero, what it is of may be infinitely far below.
        sums.append(torch.where(share == 0, 0, weighted.double() + (1 + rest) * below) * share)
    if shared:
        packed = torch.stack(sums)
        torch.distributed.all_reduce(packed, group=rows.group)
        sums = list(packed)
    # The last is zero, or NaN for a row that has +inf or nothing but -inf: it has no probabilities.
    rest = sums[0] + (sums[1] - 1) + (top - top).double()
    mean = -sums[3] / (1 + rest) if rows.with_entropy else torch.zeros_like(rest)
    return top, rest, mean, sums[2] / rows.temperature
