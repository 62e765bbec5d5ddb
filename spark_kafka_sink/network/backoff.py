"""How long to wait before the next attempt: doubles with each failure, up to a limit, plus or minus a fifth.

The jitter keeps many clients from retrying at the same moment (KIP-144, KIP-580).
"""

from __future__ import annotations

import math
from random import Random

_JITTER_SHARE = 0.2


class ExponentialBackoff:
    """A delay that grows with each failure in a row. Any thread may ask for it."""

    def __init__(self, initial_ms: int, max_ms: int, random: Random) -> None:
        self._initial_ms = min(initial_ms, max_ms)
        self._max_ms = max_ms
        self._random = random
        # The number of doublings until max_ms; a larger exponent could overflow.
        self._max_exponent = math.log2(max_ms / max(initial_ms, 1)) if max_ms > initial_ms else 0.0

    def backoff_ms(self, earlier_failure_count: int) -> int:
        """Milliseconds to wait after a failure with `earlier_failure_count` before it. No jitter if max_ms <= initial_ms."""
        if not self._max_exponent:
            return self._initial_ms
        delay_ms = self._initial_ms * math.pow(2, min(earlier_failure_count, self._max_exponent))
        return min(int(delay_ms * self._random.uniform(1 - _JITTER_SHARE, 1 + _JITTER_SHARE)), self._max_ms)
