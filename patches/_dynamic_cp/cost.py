"""What a sequence costs the ranks that share it: a model, in whole picoseconds.

The numbers are whole because every rank makes the plan for itself, and all must make the same one. The
constants are for training Qwen3-8B on H100 SXM, forward and backward. A plan depends on their ratios: how
long a sequence is before attention takes as long as all the rest, and what sharing it adds.
"""

# Qwen3-8B.
LAYERS = 36
HIDDEN = 4096
KEYS_AND_VALUES = 2 * 8 * 128
FEED_FORWARD = 12288
VOCABULARY = 151936

# H100 SXM: dense bfloat16 in operations per picosecond. The shares of it, and the rest, are assumptions.
PEAK = 989
#: One in so many operations is done: matrix products at half of the peak, attention at two fifths.
PRODUCTS, ATTENTION = (2, 1), (5, 2)
#: Bytes per nanosecond between two ranks.
LINK = 300
#: Picoseconds for a step of the exchange in one layer, and for a micro-batch, whatever is in them.
STEP = 15_000_000
MICRO_BATCH = 5_000_000_000

_PARAMETERS = LAYERS * HIDDEN * (2 * HIDDEN + KEYS_AND_VALUES + 3 * FEED_FORWARD) + HIDDEN * VOCABULARY
#: Picoseconds for a token: two operations for each parameter in the forward, twice that in the backward.
LINEAR = 6 * _PARAMETERS * PRODUCTS[0] // (PRODUCTS[1] * PEAK)
#: For a pair of tokens: two products over the causal half in the forward, five in the backward.
QUADRATIC = LAYERS * 7 * HIDDEN * ATTENTION[0] // (ATTENTION[1] * PEAK)
#: For a token that is sent to the other ranks: keys and values, again in the backward, and their gradients.
EXCHANGE = 3 * LAYERS * 2 * KEYS_AND_VALUES * 1000 // LINK


def sequence_cost(length: int, size: int) -> int:
    """Return the picoseconds for which a sequence of `length` tokens keeps each of `size` ranks busy."""
    busy = length * (LINEAR + QUADRATIC * length) // size
    return busy + EXCHANGE * length * (size - 1) // size


def start_cost(size: int) -> int:
    """Return the picoseconds that a micro-batch costs each of `size` ranks that share sequences."""
    return MICRO_BATCH + 3 * LAYERS * STEP * (size - 1)
