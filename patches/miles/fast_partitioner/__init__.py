"""`miles.fast-partitioner`: the same partitions as miles' Karmarkar-Karp, in a fraction of the time."""

from overlay.compat.projects import MILES
from overlay.effect import effect
from overlay.patches._fast_partitioner import making, patch_of

EFFECT = effect(__name__, "partition", did="computed", always=True)
make_karmarkar_karp = making(EFFECT)
PATCH = patch_of(MILES, "0.1", make_karmarkar_karp, "THUDM/slime@bd217a63f")
