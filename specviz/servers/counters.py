"""What a server counts over all requests: between two looks at its /metrics, or since its start."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from specviz.foreign.metrics import served_in
from specviz.foreign.requests import ServedRequest

#: γ of engines that count by position: a place for each draft token of a round.
_POSITION = re.compile(r'^\w+:spec_decode_num_accepted_tokens_per_pos_total\{[^}]*position="(\d{1,3})"', re.MULTILINE)


def counted_between(before: str | None, after: str | None) -> ServedRequest | None:
    """What was counted between two scrapes of one server, by all of its engines; None where it counts no drafts: SGLang
    says only how many tokens a pass makes on average. Each is None where there was nothing at /metrics."""
    if before is None or after is None:
        return None
    requests = served_in(f"{before}\n{after}").requests
    return _together(requests) if any(_counts(request) != [None, None, None] for request in requests) else None


def _counts(request: ServedRequest) -> list[int | None]:
    return [request.passes, request.drafted, request.accepted]


def _together(requests: Sequence[ServedRequest]) -> ServedRequest:
    """The sum of what the engines count that share the work (data parallelism); a count that one lacks is not known."""
    if len(requests) == 1:
        return requests[0]
    passes, drafted, accepted = (
        None if None in counts else sum(counts) for counts in zip(*map(_counts, requests), strict=True)
    )
    outcomes = [request.outcomes for request in requests if request.outcomes is not None]
    summed = sum(outcomes, Counter()) if len(outcomes) == len(requests) else None
    counted = replace(requests[-1], passes=passes, drafted=drafted, accepted=accepted, outcomes=summed)
    return replace(counted, completion_tokens=None, length=None, shares=None, steps=())


def depth_of(scrape: str | None) -> int | None:
    """How many draft tokens the server has places for, which is γ; None where it says nothing of it."""
    places = [int(place) for place in _POSITION.findall(scrape or "")]
    return 1 + max(places) if places else None
