"""Advice in words: what to use, what all ways came to, and the flags of servers; for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specviz.bench.advice import Offer, good_lengths, ranked, server_flags
from specviz.bench.work import ALL, WorkRow
from specviz.records.words import Words
from specviz.theory.ratios import Ratio
from specviz.views.run_messages import label, title
from specviz.views.terminal import harmless


@dataclass(frozen=True, slots=True)
class Advice:
    """What is told, as texts: any of them may hold the name of a model."""

    sentence: str
    head: tuple[str, ...]  # of the table
    rows: tuple[tuple[str, ...], ...]  # the fastest first
    about: str  # whose figures these are
    flags: tuple[tuple[str, str, str], ...]  # server, flags, note; empty where plain decoding is best
    domains: tuple[tuple[str, ...], ...] = ()  # a table with its head, where the prompts belong to several


def advice(
    offers: Sequence[Offer],
    machine: str,
    pair: str,
    passes: str,
    temperature: float,
    say: Words,
    rows: Sequence[WorkRow] = (),
) -> Advice:
    """offers: at least one. machine, pair, passes: what they were measured on, with and by. rows: by domain."""
    best, *_ = order = ranked(offers)
    ratio, gammas = best.row.ratio, good_lengths(offers, best)
    known = {
        "drafter": _named(best, say),
        "gamma": best.num_draft_tokens,
        "measured": say.number(ratio.value, ".2f"),
        "interval": _interval(ratio, say),
        "formula": _number(best.row.speedup_formula, say),
        "machine": machine,
    }
    sentence = say(f"advice.{best.outcome}", **known)
    if best.outcome != "plain" and len(gammas) > 1:
        sentence += " " + say("advice.range", least=gammas[0], most=gammas[-1])
    head = ("drafter", "gamma", "measured", "interval", "formula", "tokens", "length")
    return Advice(
        sentence=sentence,
        head=tuple(say(f"advice.head_{name}") for name in head),
        rows=tuple(_row(one, say) for one in order),
        about=say("advice.about", pair=pair, passes=passes, temperature=say.number(temperature, "g")),
        flags=() if best.outcome == "plain" else tuple(_flags(best, say)),
        domains=work_table(rows, say) if len({row.domain for row in rows}) > 1 else (),
    )


def aligned(table: Sequence[Sequence[str]]) -> str:
    """A table as lines of text."""
    widths = [max(map(len, column)) for column in zip(*table)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table)


def as_table(told: Advice, say: Words) -> str:
    """For a terminal."""
    flags = [f"{server}: {text}{note and f'  ({note})'}" for server, text, note in told.flags]
    parts = [aligned((told.head, *told.rows)), told.sentence, told.about]
    if told.domains:
        parts.insert(1, aligned(told.domains))
    if flags:
        parts.append("\n".join([f"{say('advice.flags')}:", *flags]))
    return harmless("\n\n".join(parts))


def as_markdown(told: Advice, say: Words, escape: Callable[[str], str]) -> str:
    """For the page. escape: what makes a text harmless in Markdown."""
    firsts = {row[0]: row for row in reversed(told.rows)}  # each drafter's best row is enough
    rows = [row for row in told.rows if firsts[row[0]] is row]
    flags = [f"- **{server}**: {escape(text)}{note and f' ({escape(note)})'}" for server, text, note in told.flags]
    parts = [f"**{escape(told.sentence)}**", _markdown((told.head, *rows), escape), escape(told.about)]
    if told.domains:
        parts.insert(2, _markdown(told.domains, escape))
    if flags:
        parts += [f"**{escape(say('advice.flags'))}**", "\n".join(flags)]
    return "\n\n".join(parts)


def _markdown(table: Sequence[Sequence[str]], escape: Callable[[str], str]) -> str:
    head, *rows = [list(map(escape, row)) for row in table]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _row(offer: Offer, say: Words) -> tuple[str, ...]:
    one = offer.row
    return (
        _named(offer, say),
        str(offer.num_draft_tokens),
        f"{say.number(one.ratio.value, '.2f')}×",
        _interval(one.ratio, say),
        _number(one.speedup_formula, say),
        say.number(one.tokens_per_second, ".0f"),
        say.number(one.acceptance_length, ".2f"),
    )


def work_table(rows: Sequence[WorkRow], say: Words) -> tuple[tuple[str, ...], ...]:
    """A head and a row for each contestant and domain, the fastest of each domain first."""
    head = ("domain", "drafter", "gamma", "prompts", "measured", "interval", "length", "interval", "kept")
    order = sorted(rows, key=lambda row: (row.domain != ALL, row.domain, -(row.speedup_measured or 0)))
    return tuple(say(f"advice.head_{name}") for name in head), *(_work_row(row, say) for row in order)


def _work_row(row: WorkRow, say: Words) -> tuple[str, ...]:
    return (
        say("advice.all_domains") if row.domain == ALL else row.domain or say("advice.no_domain"),
        title(replace(row.contestant, num_draft_tokens=None), say),
        str(row.contestant.num_draft_tokens),
        str(row.prompts),
        _number(row.speedup_measured, say),
        "" if row.ratio is None else _interval(row.ratio, say),
        say.number(row.tokens_a_pass.value, ".2f"),
        _interval(row.tokens_a_pass, say),
        " ".join(say.number(100 * one.value, ".0f") for one in row.kept_at),
    )


def _interval(ratio: Ratio, say: Words) -> str:
    return "" if ratio.low is None else f"{say.number(ratio.low, '.2f')}–{say.number(ratio.high, '.2f')}"


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
