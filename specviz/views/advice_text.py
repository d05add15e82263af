"""Advice in words: what to use, what all ways came to, and the flags of servers; for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from specviz.bench.advice import Offer, good_lengths, ranked, server_flags
from specviz.bench.work import ALL, WorkRow
from specviz.records.words import Said, Words, joined, said
from specviz.theory.statistics import Ratio
from specviz.views.run_messages import label, title
from specviz.views.terminal import harmless


@dataclass(frozen=True, slots=True)
class Advice:
    """Texts, any of which may hold the name of a model."""

    sentence: Said
    head: tuple[Said, ...]  # of the table
    rows: tuple[tuple[Said, ...], ...]  # the fastest first
    about: Said  # whose figures these are
    flags: tuple[tuple[str, Said, Said], ...]  # server, flags, note; empty where plain decoding is best
    domains: tuple[tuple[Said, ...], ...] = ()  # a table with its head, where the prompts belong to several


def advice(
    offers: Sequence[Offer],
    machine: str,
    pair: str,
    passes: Said,
    temperature: float,
    rows: Sequence[WorkRow] = (),
) -> Advice:
    """offers: at least one. machine, pair, passes: what they were measured on, with and by. rows: by domain."""
    best, *_ = order = ranked(offers)
    ratio, gammas = best.row.ratio, good_lengths(offers, best)
    known = {
        "drafter": _named(best),
        "gamma": best.num_draft_tokens,
        "measured": ratio.value,
        "interval": _interval(ratio),
        "formula": _number(best.row.speedup_formula),
        "machine": machine,
    }
    sentence = said(f"advice.{best.outcome}", **known)
    if best.outcome != "plain" and len(gammas) > 1:
        sentence = joined([sentence, said("advice.range", least=gammas[0], most=gammas[-1])], " ")
    head = ("drafter", "gamma", "measured", "interval", "formula", "tokens", "length")
    return Advice(
        sentence=sentence,
        head=tuple(said(f"advice.head_{name}") for name in head),
        rows=tuple(_row(one) for one in order),
        about=said("advice.about", pair=pair, passes=passes, temperature=temperature),
        flags=() if best.outcome == "plain" else tuple(_flags(best)),
        domains=work_table(rows) if len({row.domain for row in rows}) > 1 else (),
    )


def aligned(table: Sequence[Sequence[str]]) -> str:
    """A table as lines of text."""
    widths = [max(map(len, column)) for column in zip(*table)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table)


def as_table(advice: Advice, say: Words) -> str:
    """For a terminal."""
    told = _spoken(advice, say)
    flags = [f"{server}: {text}{note and f'  ({note})'}" for server, text, note in told.flags]
    parts = [aligned((told.head, *told.rows)), told.sentence, told.about]
    if told.domains:
        parts.insert(1, aligned(told.domains))
    if flags:
        parts.append("\n".join([f"{say('advice.flags')}:", *flags]))
    return harmless("\n\n".join(parts))


def as_markdown(advice: Advice, say: Words, escape: Callable[[str], str]) -> str:
    """For the page. escape: what makes a text harmless in Markdown."""
    told = _spoken(advice, say)
    firsts = {row[0]: row for row in reversed(told.rows)}  # each drafter's best row is enough
    rows = [row for row in told.rows if firsts[row[0]] is row]
    flags = [f"- **{server}**: {escape(text)}{note and f' ({escape(note)})'}" for server, text, note in told.flags]
    parts = [f"**{escape(told.sentence)}**", _markdown((told.head, *rows), escape), escape(told.about)]
    if told.domains:
        parts.insert(2, _markdown(told.domains, escape))
    if flags:
        parts += [f"**{escape(say('advice.flags'))}**", "\n".join(flags)]
    return "\n\n".join(parts)


def _spoken(advice: Advice, say: Words) -> Advice:
    return Advice(**{field.name: say.spoken(getattr(advice, field.name)) for field in fields(advice)})


def _markdown(table: Sequence[Sequence[str]], escape: Callable[[str], str]) -> str:
    head, *rows = [list(map(escape, row)) for row in table]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _row(offer: Offer) -> tuple[Said, ...]:
    one = offer.row
    return (
        _named(offer),
        str(offer.num_draft_tokens),
        said("advice.times", x=one.ratio.value),
        _interval(one.ratio),
        _number(one.speedup_formula),
        said("advice.whole", x=one.tokens_per_second),
        said("advice.decimals", x=one.acceptance_length),
    )


def work_table(rows: Sequence[WorkRow]) -> tuple[tuple[Said, ...], ...]:
    """A head and a row for each contestant and domain, the fastest of each domain first."""
    head = ("domain", "drafter", "gamma", "prompts", "measured", "interval", "length", "interval", "kept")
    order = sorted(rows, key=lambda row: (row.domain != ALL, row.domain, -(row.speedup_measured or 0)))
    return tuple(said(f"advice.head_{name}") for name in head), *(_work_row(row) for row in order)


def _work_row(row: WorkRow) -> tuple[Said, ...]:
    return (
        said("advice.all_domains") if row.domain == ALL else row.domain or said("advice.no_domain"),
        title(replace(row.contestant, num_draft_tokens=None)),
        str(row.contestant.num_draft_tokens),
        str(row.prompts),
        _number(row.speedup_measured),
        "" if row.ratio is None else _interval(row.ratio),
        said("advice.decimals", x=row.tokens_a_pass.value),
        _interval(row.tokens_a_pass),
        " ".join(f"{100 * one.value:.0f}" for one in row.kept_at),
    )


def _interval(ratio: Ratio) -> Said:
    return "" if ratio.low is None else said("advice.between", low=ratio.low, high=ratio.high)


def _flags(offer: Offer) -> list[tuple[str, Said, Said]]:
    return [
        (one.server, one.flags or said("advice.none"), said(f"advice.note_{one.note}") if one.note else "")
        for one in server_flags(offer)
    ]


def _named(offer: Offer) -> Said:
    name = label(offer.mode)
    return joined([name, f"({offer.draft})"], " ") if offer.draft else name


def _number(value: float | None) -> Said:
    return "–" if value is None else said("advice.times", x=value)
