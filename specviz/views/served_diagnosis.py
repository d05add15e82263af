"""A server's figures: signs of a fault in them (`specviz.foreign.doctor`), and published figures for comparison."""

import functools
import json
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import Any

from specviz.foreign.doctor import ServerFinding, Signs, examine
from specviz.foreign.requests import ServedRequest
from specviz.records.assets import ASSETS
from specviz.records.errors import SpecvizError, quoted
from specviz.records.words import Words
from specviz.theory.along_texts import find_fall

#: How far a mean of two decimals may lie from its true value.
HALF_A_HUNDREDTH = 0.005

#: Figures of a finding that are shares, written as percentages.
_SHARES = "rate", "first", "share", "alpha", "before_fall", "after_fall"

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
    passes, an interval had at least as many as its drafted tokens fill and its mean leaves, and at least one. Raises
    SpecvizError (field ``speedup``) for speedups in another form.
    """
    passes = accepted = drafted = 0.0
    accepted_at: list[float] = []
    judged_at: list[float] = []
    counts = [_by_position(request) for request in requests]
    for request, (number, tokens, positions) in zip(requests, counts):
        passes, accepted, drafted = passes + number, accepted + tokens, drafted + (request.drafted or 0)
        judged = [number, *positions] if request.tally is None else request.tally.judged_at
        accepted_at = [sum(pair) for pair in zip_longest(accepted_at, positions, fillvalue=0.0)]
        judged_at = [sum(pair) for pair in zip_longest(judged_at, judged[: len(positions)], fillvalue=0.0)]
    # A position is judged by all requests, or by none.
    if any(tokens and not positions for _, tokens, positions in counts):
        accepted_at, judged_at = [], []
    drafts_counted = all(request.drafted is not None and not request.format.nominal for request in requests)
    loads = [request.running for request in requests if request.running]
    load = (min(loads), fmean(loads), max(loads)) if loads else None
    gains = _speedups(speedups, load[1] if load else 1.0) or _measured(requests, plain)
    return Signs(
        passes=passes,
        counted=all(request.passes is not None for request in requests),
        accepted_at=[min(pair) for pair in zip(accepted_at, judged_at)],
        judged_at=judged_at,
        lengths_known=all(request.lengths_known for request in requests),
        accepted=accepted if passes else None,
        drafted=drafted if drafts_counted else None,
        speedups=gains,
        loads=len(gains),
        cost=cost,
        load=load,
        fall=find_fall([request.steps for request in requests]),
    )


def _measured(requests: Sequence[ServedRequest], plain: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Speedups by requests at once, the least first, where a benchmark was run with drafts and without."""
    drafting = _by_load([(request.running, request.speed) for request in requests])
    without = _by_load(plain)
    return [(load, drafting[load] / without[load]) for load in sorted(drafting.keys() & without.keys())]


def _by_load(benchmarks: Sequence[tuple[float | None, float | None]]) -> dict[float, float]:
    """Mean tokens a second by requests at once, over the benchmarks that report both."""
    speeds: dict[float, list[float]] = {}
    for load, speed in benchmarks:
        if load and speed:
            speeds.setdefault(load, []).append(speed)
    return {load: fmean(values) for load, values in speeds.items()}


def _by_position(request: ServedRequest) -> tuple[float, float, list[float]]:
    """Passes, tokens accepted in them, and passes that accepted a token at each position; zeros where an entry says
    nothing of it."""
    if request.tally is not None:
        return request.tally.rounds, request.tally.accepted, [float(number) for number in request.tally.accepted_at]
    if request.outcomes:
        deepest = max(accepted for accepted, _ in request.outcomes)
        positions = [
            float(sum(number for (accepted, _), number in request.outcomes.items() if accepted > place))
            for place in range(deepest)
        ]
        return request.outcomes.total(), sum(positions), positions
    if request.shares:
        at_least = max(_least_passes(request), (request.drafted or 0) / len(request.shares))
        passes = at_least if request.passes is None else request.passes
        return passes, passes * sum(request.shares), [passes * share for share in request.shares]
    if request.passes and request.accepted is not None:
        return request.passes, request.accepted, []
    passes = _least_passes(request) if request.passes is None else request.passes
    if not request.length:
        return 0.0, 0.0, []
    return passes, passes * (request.length - 1) if request.accepted is None else request.accepted, []


def _least_passes(request: ServedRequest) -> float:
    """As many as the mean, which has two decimals, and the accepted tokens leave; at least one."""
    more = (request.length or 0.0) + HALF_A_HUNDREDTH - 1
    return max(1.0, (request.accepted or 0) / more) if more > 0 else 1.0


def _speedups(text: str, load: float) -> list[tuple[float, float]]:
    """``1.9``, or with requests at once ``1:1.9 32:0.8``, the least load first. load: where none is typed."""
    typed: dict[float, float] = {}
    # A comma within a number is a decimal sign; before the next load it is none.
    for part in re.sub(r"(?<=\d),(?=\d+(?![\d:]))", ".", text).replace(",", " ").split():
        match = _SPEEDUP.fullmatch(part)
        if match is None or not float(match[2]) or float(match[1] or load) in typed:
            raise SpecvizError(
                "Write a measured speedup as 1.9, or with the number of requests at once as 1:1.9 32:0.8, not {value}.",
                "speedup",
                value=quoted(part),
            )
        typed[float(match[1] or load)] = float(match[2])
    return sorted(typed.items())


def findings(signs: Signs, say: Words) -> list[dict[str, Any]]:
    """What the doctor says, for a message: its text, and each likely cause with what would settle it."""

    def message(finding: ServerFinding) -> dict[str, Any]:
        figures = {name: 100 * value if name in _SHARES else value for name, value in finding.figures.items()}
        causes = [
            {"cause": say(f"doctor.cause_{cause}"), "settles": say(f"doctor.settles_{cause}")}
            for cause in finding.causes
        ]
        return {"kind": finding.kind, "text": say(f"doctor.{finding.kind}", **figures), "causes": causes}

    return list(map(message, examine(signs)))


@functools.cache
def anchors() -> list[dict[str, Any]]:
    """Published figures, each with as much of its circumstances as its source says."""
    return json.loads((ASSETS / "anchors.json").read_text(encoding="utf-8"))


def anchors_for(requests: Sequence[ServedRequest], signs: Signs) -> list[dict[str, Any]]:
    """The published figures, those of a method that the server names first, then those that drafted as much."""
    names = _plain(" ".join(request.name for request in requests[:100]))
    gamma = signs.drafted / signs.passes if signs.drafted and signs.passes else len(signs.accepted_at)

    def distance(anchor: dict[str, Any]) -> tuple[bool, float]:
        return _plain(anchor["method"]) not in names, abs(anchor.get("drafted", 99) - gamma) if gamma else 0

    return sorted(anchors(), key=distance)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def diagnosis_lines(signs: Signs, requests: Sequence[ServedRequest], say: Words) -> Iterator[str]:
    """The same for a terminal."""
    yield say("doctor.title")
    diagnosed = findings(signs, say)
    for finding in diagnosed:
        yield f"- {finding['text']}"
        for cause in finding["causes"]:
            yield f"    {cause['cause']} {cause['settles']}"
    if not diagnosed:
        yield f"- {say('doctor.nothing')}"
    yield ""
    yield say("doctor.anchors_title")
    for method, least, most, number in ranges(anchors_for(requests, signs)):
        yield f"  {method:14} {least:.2f} – {most:.2f}   {say('doctor.settings', n=number)}"
    yield say("doctor.anchors_lead")


def ranges(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float, float, int]]:
    """By method, in order: the least and the most tokens per pass that were published, and in how many settings."""
    for method in dict.fromkeys(row["method"] for row in rows):
        tokens = [row["tokens"] for row in rows if row["method"] == method and "tokens" in row]
        if tokens:
            yield method, min(tokens), max(tokens), len(tokens)
