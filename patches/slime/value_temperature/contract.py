"""Values are what the critic's head puts out, and logits are divided by the rollout's temperature."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which values or logits of responses are others, empty if none are."""
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        import torch

        from overlay.compat.slime_on_cpu import import_slime
        from overlay.compat.slime_on_cpu.losses import arguments

        (loss,) = import_slime("loss")
        made = torch.Generator().manual_seed(int(seed))
        totals, counts = [9, 6, 12], [4, 3, 11]
        tokens = [torch.randint(5, (total,), generator=made) for total in totals]
        lengths = {"unconcat_tokens": tokens, "total_lengths": totals, "response_lengths": counts}
        for temperature in (0.7, 1.0):
            args = arguments(rollout_temperature=temperature)
            for width in (1, 5):
                head = torch.randn(1, sum(totals), width, generator=made)
                rows = [head[0, : sum(totals[: index + 1])] for index in range(3)]
                wanted = [row[-count - 1 : -1] for row, count in zip(rows, counts, strict=True)]
                if width == 1:
                    found = loss.get_values(head, args=args, **lengths)
                    found = (found if isinstance(found, dict) else found[1])["values"]
                    wanted = [row[:, 0] for row in wanted]
                else:
                    found = [row for row, _ in loss.get_responses(head, args=args, **lengths)]
                    wanted = [row / temperature for row in wanted]
                off = max((one - two).abs().max().item() for one, two in zip(found, wanted, strict=True))
                # A NaN is not below anything.
                if not off < 1e-6:
                    what = "values" if width == 1 else "logits"
                    return f"{what} at temperature {temperature} are off by {off:.3g}"
    return ""


CONTRACT = Contract(
    check=with_patches(wrong, "slime.value-temperature"), before=("megatron.core", "ray", "tensordict")
)
