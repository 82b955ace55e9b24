"""Values are what the critic's head puts out, and logits are divided by the rollout's temperature."""

import itertools
from typing import Any

from overlay.compat.contracts.slime import contract, on_megatron


@on_megatron("loss")
def wrong(seed: str, loss: Any) -> str:
    """Return which values or logits of responses are others."""
    import torch

    from overlay.compat.slime_on_cpu.losses import arguments

    made = torch.Generator().manual_seed(int(seed))
    totals, counts = [9, 6, 12], [4, 3, 11]
    tokens = [torch.randint(5, (total,), generator=made) for total in totals]
    lengths = {"unconcat_tokens": tokens, "total_lengths": totals, "response_lengths": counts}
    for temperature, width in itertools.product((0.7, 1.0), (1, 5)):
        args = arguments(rollout_temperature=temperature)
        head = torch.randn(1, sum(totals), width, generator=made)
        rows = [row[-count - 1 : -1] for row, count in zip(head[0].split(totals), counts, strict=True)]
        if width == 1:
            found = loss.get_values(head, args=args, **lengths)
            found = (found if isinstance(found, dict) else found[1])["values"]
            wanted = [row[:, 0] for row in rows]
        else:
            found = [row for row, _ in loss.get_responses(head, args=args, **lengths)]
            wanted = [row / temperature for row in rows]
        off = max((one - two).abs().max().item() for one, two in zip(found, wanted, strict=True))
        # A NaN is not below anything.
        if not off < 1e-6:
            return f"{'values' if width == 1 else 'logits'} at temperature {temperature} are off by {off:.3g}"
    return ""


CONTRACT = contract(wrong, "slime.value-temperature")
