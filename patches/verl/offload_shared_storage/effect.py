"""What `verl.offload-shared-storage` counts."""

from overlay.effect import Figure, effect

EFFECT = effect(
    __name__,
    "storage",
    Figure(name="bytes", says="bytes that verl would have freed under another tensor", unit="bytes"),
    did="left whole",
    then="{bytes} that another tensor holds",
)
