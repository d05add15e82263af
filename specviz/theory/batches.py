"""What a pass costs that serves many requests at once, as measured.

With γ draft tokens each, B requests are verified in one pass over B · (γ + 1) tokens. The arithmetic that verification
finds idle with a single request is then needed by the other requests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Timed passes over `width` tokens of each of `requests` requests."""

    role: str  # ``target``, or ``draft``, whose steps read one token of each
    requests: int
    width: int
    seconds: float  # median
    repeats: int


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """T(B, K) of a pair's models, complete or still being measured; what would have taken too long is left out."""

    target: str  # the models' names
    draft: str | None
    context: int  # cached tokens of each request before each pass
    device: str
    dtype: str
    kind: str  # what multiplied: ``plain``, torch's own operations, or our ``kernels``
    threads: int | None  # on a CPU
    batches: tuple[int, ...]  # the B asked for
    points: tuple[BatchPoint, ...]
    fraction: float  # share of the measuring that is done
