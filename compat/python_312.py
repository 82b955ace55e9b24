"""What Megatron 0.19's own tests take for granted of Python: on 3.10 and 3.11, importing this supplies it.

For runs of those tests only. Megatron-Core itself does without.
"""

from __future__ import annotations

import typing

if not hasattr(typing, "override"):
    from typing_extensions import override

    # It marks a method for type checkers, and does nothing when it runs.
    vars(typing)["override"] = override
