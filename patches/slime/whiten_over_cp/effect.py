"""What `slime.whiten-over-cp` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "normalisation",
    Figure(
        name="mean_off",
        says="distance of a mean that slime takes from that of all tokens, in deviations",
        combine="max",
    ),
    Figure(
        name="deviation_off",
        says="how far a deviation that slime takes is from that of all tokens, as a part of it",
        combine="max",
    ),
    Figure(
        name="empty",
        says="of them, those in which this rank had no token, so that the others would have waited for it",
    ),
    then="without it a mean up to {mean_off} deviations off, a deviation up to {deviation_off} of itself",
)
