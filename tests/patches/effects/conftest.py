"""What tests of counts draw."""

from __future__ import annotations

import random

import pytest
from checks import SEED


@pytest.fixture
def draw() -> random.Random:
    print("seed", SEED)
    return random.Random(SEED)
