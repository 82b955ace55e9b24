"""What `megatron.attention-logit-memory` counts."""

from overlay.effect import effect

EFFECT = effect(__name__, "logit of a layer", did="begun anew", always=True)
