"""What a server counts over all requests: between two looks at its /metrics, or since its start."""

from __future__ import annotations

import re

from specviz.foreign.metrics import served_in
from specviz.foreign.requests import ServedRequest

#: γ of engines that count by position: a place for each draft token of a round.
_POSITION = re.compile(r'^\w+:spec_decode_num_accepted_tokens_per_pos_total\{[^}]*position="(\d{1,3})"', re.MULTILINE)


def counted_between(before: str | None, after: str | None) -> ServedRequest | None:
    """What was counted between two scrapes of one server; None where it counts no drafts. after: None where there is
    nothing at /metrics."""
    if after is None:
        return None
    requests = served_in(f"{before or ''}\n{after}").requests
    return requests[-1] if requests else None


def depth_of(scrape: str | None) -> int | None:
    """How many draft tokens the server has places for, which is γ; None where it says nothing of it."""
    places = [int(place) for place in _POSITION.findall(scrape or "")]
    return 1 + max(places) if places else None
