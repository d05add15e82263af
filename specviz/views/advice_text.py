"""Advice in words: what to use, what all ways came to, and the flags of servers; for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specviz.bench.advice import Offer, ranked, server_flags
from specviz.records.words import Words
from specviz.views.terminal import harmless
from specviz.views.whole_run import label


@dataclass(frozen=True, slots=True)
class Advice:
    """What is told, as texts: any of them may hold the name of a model."""

    sentence: str
    head: tuple[str, ...]  # of the table
    rows: tuple[tuple[str, ...], ...]  # the fastest first
    about: str  # whose figures these are
    flags: tuple[tuple[str, str, str], ...]  # server, flags, note; empty where plain decoding is best


def advice(offers: Sequence[Offer], machine: str, pair: str, passes: str, temperature: float, say: Words) -> Advice:
    """offers: at least one. machine, pair, passes: what they were measured on, with and by."""
    best, *_ = order = ranked(offers)
    standing = best.standing
    known = {
        "drafter": _named(best, say),
        "gamma": best.num_draft_tokens,
        "measured": say.number(standing.speedup_measured, ".2f"),
        "least": say.number(standing.speedup_spread[0], ".2f"),
        "most": say.number(standing.speedup_spread[1], ".2f"),
        "formula": _number(standing.speedup_formula, say),
        "machine": machine,
    }
    head = ("drafter", "gamma", "measured", "spread", "repeats", "formula", "tokens", "length")
    return Advice(
        sentence=say(f"advice.{best.outcome}", **known),
        head=tuple(say(f"advice.head_{name}") for name in head),
        rows=tuple(_row(one, say) for one in order),
        about=say("advice.about", pair=pair, passes=passes, temperature=say.number(temperature, "g")),
        flags=() if best.outcome == "plain" else tuple(_flags(best, say)),
    )


def as_table(told: Advice, say: Words) -> str:
    """For a terminal."""
    widths = [max(map(len, column)) for column in zip(told.head, *told.rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in (told.head, *told.rows)]
    lines = [line.rstrip() for line in lines]
    flags = [f"{server}: {text}{note and f'  ({note})'}" for server, text, note in told.flags]
    parts = ["\n".join(lines), told.sentence, told.about]
    if flags:
        parts.append("\n".join([f"{say('advice.flags')}:", *flags]))
    return harmless("\n\n".join(parts))


def as_markdown(told: Advice, say: Words, escape: Callable[[str], str]) -> str:
    """For the page. escape: what makes a text harmless in Markdown."""
    firsts = {row[0]: row for row in reversed(told.rows)}  # each drafter's best row is enough
    rows = [tuple(map(escape, row)) for row in (told.head, *(row for row in told.rows if firsts[row[0]] is row))]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(told.head), *rows[1:])]
    flags = [f"- **{server}**: {escape(text)}{note and f' ({escape(note)})'}" for server, text, note in told.flags]
    parts = [f"**{escape(told.sentence)}**", "\n".join(lines), escape(told.about)]
    if flags:
        parts += [f"**{escape(say('advice.flags'))}**", "\n".join(flags)]
    return "\n\n".join(parts)


def _row(offer: Offer, say: Words) -> tuple[str, ...]:
    one = offer.standing
    return (
        _named(offer, say),
        str(offer.num_draft_tokens),
        f"{say.number(one.speedup_measured, '.2f')}×",
        "–".join(say.number(ratio, ".2f") for ratio in one.speedup_spread) if offer.repeats > 1 else "",
        str(offer.repeats),
        _number(one.speedup_formula, say),
        say.number(one.tokens_per_second, ".0f"),
        say.number(one.acceptance_length, ".2f"),
    )


def _flags(offer: Offer, say: Words) -> list[tuple[str, str, str]]:
    return [
        (one.server, one.flags or say("advice.none"), say(f"advice.note_{one.note}") if one.note else "")
        for one in server_flags(offer)
    ]


def _named(offer: Offer, say: Words) -> str:
    name = label(offer.mode, say)
    return f"{name} ({offer.draft})" if offer.draft else name


def _number(value: float | None, say: Words) -> str:
    return "–" if value is None else f"{say.number(value, '.2f')}×"
