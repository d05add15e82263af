"""What was found out about a server, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specviz.foreign.requests import ServedRequest
from specviz.records.tables import aligned
from specviz.records.words import words
from specviz.servers.engine import About
from specviz.servers.lossless import Lossless
from specviz.servers.pace import Pace, Speed
from specviz.servers.server import Watch
from specviz.theory.statistics import Ratio
from specviz.views.served_diagnosis import findings, signs_of
from specviz.views.terminal import harmless


def about_lines(about: About) -> Iterator[str]:
    """What runs there."""
    yield harmless(f"{about.engine} {about.version or '(version not known)'} at {about.url}")
    named = {"model": about.model, "drafter": about.drafter, "γ": about.depth, "context": about.context}
    named |= {"requests at once": about.slots}
    yield harmless(", ".join(f"{name}: {'not known' if value is None else value}" for name, value in named.items()))
    if about.sampling:
        defaults = ", ".join(f"{name} {value}" for name, value in about.sampling.items() if name != "samplers")
        if defaults:
            yield harmless(f"samples by default with {defaults}")


def rounds_lines(watch: Watch) -> Iterator[str]:
    """The counts of the rounds that were seen, beside those that the server makes itself."""
    counts, known = watch.counts, watch.together.lengths_known
    how = ", inferred from which tokens arrived together" if watch.together.inferred else ""
    if not counts.drafted and known:
        yield f"{len(watch.rounds)} tokens, none of them drafted{how}"
        return
    yield (
        f"{counts.rounds} passes{' verified a draft' if known else ''}: "
        f"{counts.drafted if known else 'not known how many'} drafted, {counts.accepted} accepted, "
        f"{counts.acceptance_length:.2f} tokens per pass{how}"
    )
    if shares := ", ".join(f"{accepted / counts.rounds:.2f}" for accepted in counts.accepted_at):
        yield f"accepted by position, of all passes: {shares}"
    counted = watch.counted
    if counted is not None:
        if (counted.passes, counted.drafted, counted.accepted) == (counts.rounds, counts.drafted, counts.accepted):
            yield "the server's own counters: the same"
        else:
            values = {"passes": counted.passes, "drafted": counted.drafted, "accepted": counted.accepted}
            known_ones = ", ".join(f"{value} {name}" for name, value in values.items() if value is not None)
            yield f"the server's own counters: {known_ones}; somebody else may have asked it meanwhile"


def speed_lines(speed: Speed) -> Iterator[str]:
    """Tokens a second by load, and the speedup where something was measured without speculation."""
    paces = [*speed.by_load, *speed.by_depth, *speed.by_domain]
    if paces:
        head = ("requests", "γ", "prompts", "tokens/s", "each", "per pass", "speedup")
        yield aligned([head, *map(_pace_row, paces)], left=0)
    if speed.stops_paying_at is not None:
        yield words()("server.stops_paying", n=speed.stops_paying_at)
    yield from (harmless(f"· {remark}") for remark in speed.remarks)


def lossless_lines(known: Lossless) -> Iterator[str]:
    """The verdict, what it rests on, and how large a fault would have been found."""
    yield harmless(f"\n{known.verdict}: {known.sentence or ''}")
    yield from (harmless(f"  {sentence}") for sentence in map(str, filter(None, (known.most_off, known.broken))))
    for test in known.tests:
        details = ", ".join(f"{name} {value:g}" for name, value in test.detail.items())
        yield f"  {test.name}: {test.statistic:.2f}, p = {test.p_value:.2g}  ({details})"
    if known.greedy is not None:
        same = known.greedy.tokens - known.greedy.off
        gap = f"; the others are less likely by {known.greedy.gap:.2f} nats at most" if known.greedy.off else ""
        yield f"  at temperature 0, {same} of {known.greedy.tokens} tokens are the model's choice{gap}"
    if known.finds:
        yield (
            f"  nine times in ten it finds a token of 5 % that is {known.finds['times']:.2f} times too likely, or a "
            f"mean surprisal that is off by {known.finds['nats']:.3f} nats"
        )


def doctor_lines(counted: ServedRequest, speed: Speed | None) -> Iterator[str]:
    """What the doctor says of all that was counted and measured."""
    signs = signs_of([counted])
    if speed is not None:
        signs = replace(signs, speedups=speed.gains, loads=speed.compared)
    for finding in findings(signs, words()):
        yield f"- {finding['text']}"
        yield from (f"    {cause['cause']} {cause['settles']}" for cause in finding["causes"])


def _pace_row(pace: Pace) -> tuple[str, ...]:
    measured = pace.measured
    per_pass = "" if measured.tokens_per_pass is None else f"{measured.tokens_per_pass:.2f}"
    depth = "" if pace.depth is None else str(pace.depth)
    all_, each = measured.tokens_per_second, measured.tokens_per_second_each
    return str(pace.load), depth, pace.domain, f"{all_:.0f}", f"{each:.0f}", per_pass, _times(pace.speedup)


def _times(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio.value:.2f}×" + (f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.interval else "")
