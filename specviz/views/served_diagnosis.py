"""A server's figures: signs of a fault in them (`specviz.foreign.doctor`), and published figures for comparison."""

import functools
import json
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import Any

from specviz.foreign.doctor import Finding, Signs, examine
from specviz.foreign.metrics import ServedRequest, tally_of
from specviz.records.assets import ASSETS
from specviz.records.errors import SpecvizError, quoted
from specviz.records.words import Words

#: Figures of a finding that are shares, written as percentages.
_SHARES = "rate", "first", "share", "alpha"

_SPEEDUP = re.compile(r"(?:(\d{1,6}):)?(\d{1,4}(?:\.\d+)?)x?", re.ASCII)


def signs_of(
    requests: Sequence[ServedRequest],
    speedups: str = "",
    cost: float | None = None,
    plain: Sequence[tuple[float, float]] = (),
) -> Signs:
    """What the doctor looks at, of all requests together.

    speedups, cost: what their server's owner measured. plain: benchmarks without drafts, requests at once and tokens a
    second; one with drafts at the same load makes a speedup of it, where none is typed. Where a log does not count
    passes, an interval had at least as many as its drafted tokens fill, and at least one. Raises SpecvizError (field
    ``speedup``) for speedups in another form.
    """
    passes = accepted = drafted = 0.0
    kept: list[float] = []
    reached: list[float] = []
    told, whole = [_told(request) for request in requests], all(request.lengths_known for request in requests)
    for request, (number, tokens, positions) in zip(requests, told):
        passes, accepted, drafted = passes + number, accepted + tokens, drafted + (request.drafted or 0)
        before = [number, *positions] if not request.lengths_known else tally_of(request.outcomes).judged_at
        kept = [sum(pair) for pair in zip_longest(kept, positions, fillvalue=0.0)]
        reached = [sum(pair) for pair in zip_longest(reached, before[: len(positions)], fillvalue=0.0)]
    # A position is judged by all requests, or by none.
    if any(tokens and not positions for _, tokens, positions in told):
        kept, reached = [], []
    counted = all(request.drafted is not None and not request.format.nominal for request in requests)
    known = bool(passes)
    loads = [request.running for request in requests if request.running]
    load = (min(loads), fmean(loads), max(loads)) if loads else None
    return Signs(
        passes=passes,
        kept=[min(pair) for pair in zip(kept, reached)],
        reached=reached,
        whole=whole,
        accepted=accepted if known else None,
        drafted=drafted if counted else None,
        speedups=_speedups(speedups, load[1] if load else 1.0) or _measured(requests, plain),
        cost=cost,
        load=load,
    )


def _measured(requests: Sequence[ServedRequest], plain: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Speedups by requests at once, the least first, where a benchmark was run with drafts and without."""
    drafting, without = _by_load([(request.running, request.speed) for request in requests]), _by_load(plain)
    return [(load, drafting[load] / without[load]) for load in sorted(drafting.keys() & without.keys())]


def _by_load(benchmarks: Sequence[tuple[float | None, float | None]]) -> dict[float, float]:
    """Mean tokens a second by requests at once, of those that say both."""
    found: dict[float, list[float]] = {}
    for load, speed in benchmarks:
        if load and speed:
            found.setdefault(load, []).append(speed)
    return {load: fmean(speeds) for load, speeds in found.items()}


def _told(one: ServedRequest) -> tuple[float, float, list[float]]:
    """Passes, tokens kept in them, and passes that kept each position; zeros of an entry that tells nothing of it."""
    if one.lengths_known:
        counts = tally_of(one.outcomes)
        return counts.rounds, counts.accepted, [float(number) for number in counts.accepted_at]
    if one.outcomes:
        deepest = max(kept for kept, _ in one.outcomes)
        positions = [
            float(sum(number for (kept, _), number in one.outcomes.items() if kept > place)) for place in range(deepest)
        ]
        return one.outcomes.total(), sum(positions), positions
    if one.shares:
        passes = max(1.0, (one.drafted or 0) / len(one.shares)) if one.passes is None else one.passes
        return passes, passes * sum(one.shares), [passes * share for share in one.shares]
    if one.passes and one.accepted is not None:
        return one.passes, one.accepted, []
    return (1.0, one.length - 1, []) if one.length else (0.0, 0.0, [])


def _speedups(text: str, load: float) -> list[tuple[float, float]]:
    """``1.9``, or with requests at once ``1:1.9 32:0.8``, the least load first. load: where none is typed."""
    found = []
    for part in text.replace(",", " ").split():
        match = _SPEEDUP.fullmatch(part)
        if match is None or not float(match[2]):
            raise SpecvizError(
                "Write a measured speedup as 1.9, or with the number of requests at once as 1:1.9 32:0.8, not {value}.",
                "speedup",
                value=quoted(part),
            )
        found.append((float(match[1] or load), float(match[2])))
    return sorted(found)


def findings(signs: Signs, say: Words) -> list[dict[str, Any]]:
    """What the doctor says, for a message: its text, and each likely cause with what would settle it."""
    return [
        {
            "kind": finding.kind,
            "text": say(f"doctor.{finding.kind}", **_written(finding)),
            "causes": [
                {"cause": say(f"doctor.cause_{cause}"), "settles": say(f"doctor.settles_{cause}")}
                for cause in finding.causes
            ],
        }
        for finding in examine(signs)
    ]


def _written(finding: Finding) -> dict[str, float]:
    return {name: 100 * value if name in _SHARES else value for name, value in finding.figures.items()}


@functools.cache
def anchors() -> list[dict[str, Any]]:
    """Published figures, each with as much of its circumstances as its source says."""
    return json.loads((ASSETS / "anchors.json").read_text(encoding="utf-8"))


def beside(requests: Sequence[ServedRequest], signs: Signs) -> list[dict[str, Any]]:
    """The published figures, those of a method that the server names first, then those that drafted as much."""
    names = _plain(" ".join(request.name for request in requests[:100]))
    gamma = signs.drafted / signs.passes if signs.drafted and signs.passes else len(signs.kept)
    return sorted(
        anchors(),
        key=lambda one: (_plain(one["method"]) not in names, abs(one.get("drafted", 99) - gamma) if gamma else 0),
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def diagnosis_lines(signs: Signs, requests: Sequence[ServedRequest], say: Words) -> Iterator[str]:
    """The same for a terminal."""
    yield say("doctor.title")
    found = findings(signs, say)
    for finding in found:
        yield f"- {finding['text']}"
        for cause in finding["causes"]:
            yield f"    {cause['cause']} {cause['settles']}"
    if not found:
        yield f"- {say('doctor.nothing')}"
    yield ""
    yield say("doctor.anchors_title")
    for method, least, most, number in ranges(beside(requests, signs)):
        yield f"  {method:14} {least:.2f} – {most:.2f}   {say('doctor.settings', n=number)}"
    yield say("doctor.anchors_lead")


def ranges(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float, float, int]]:
    """By method, in order: the least and the most tokens per pass that were published, and in how many settings."""
    for method in dict.fromkeys(one["method"] for one in rows):
        tokens = [one["tokens"] for one in rows if one["method"] == method and "tokens" in one]
        if tokens:
            yield method, min(tokens), max(tokens), len(tokens)
