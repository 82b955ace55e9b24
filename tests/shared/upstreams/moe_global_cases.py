"""What `global_aux_loss` does on several ranks, of which each has a part of all tokens that it is over."""

from __future__ import annotations

import functools

from overlay.patches.megatron.moe_aux_scale import contract as of_losses

cases = functools.partial(of_losses.cases, kinds=of_losses.GLOBAL)
