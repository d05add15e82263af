"""Text for a terminal: a run as it is written; and what the page says too: whether it pays, where texts part."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TextIO

from specviz.bench.advice import Offer, good_lengths, load_of, may_be_best, on_a_server, ranked, server_flags, winner
from specviz.bench.contest import ALL, Row
from specviz.records.metrics import Tally
from specviz.records.runs import Round
from specviz.records.tables import aligned
from specviz.records.words import Said, Words, joined, said
from specviz.theory.roofline import BatchTimes
from specviz.theory.statistics import Ratio
from specviz.views.labels import label, title

if TYPE_CHECKING:
    from specviz.bench.two_texts import Parting
    from specviz.models.pair import ModelPair

#: The page's colours as 256-colour codes, and its symbols.
ACCEPTED, RECOVERED, BONUS, PLAIN = "38;5;35", "38;5;172", "38;5;32", "0"
LEGEND = ((ACCEPTED, "✓ accepted draft"), (RECOVERED, "↻ recovered"), (BONUS, "★ bonus"), (PLAIN, "○ plain step"))

#: Joiners belong to words and emoji in many scripts, and turn nothing around.
_JOINERS = "\n\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


def wants_colour(stream: TextIO) -> bool:
    """Colour on terminals, unless NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def harmless(text: str) -> str:
    """Model text made safe for a terminal: characters that could move the cursor, turn the line around or hide are
    shown."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
        return character
    return chr(0x2400 + ord(character)) if ord(character) < 0x20 else "\N{REPLACEMENT CHARACTER}"


def painted(text: str, colour: str, enabled: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if enabled and text else text


def paint_round(round_: Round, enabled: bool) -> str:
    """The round's text: accepted draft tokens, then one token of the target's own."""
    last = PLAIN if not round_.drafted else RECOVERED if round_.next.kind == "recovered" else BONUS
    colours = [ACCEPTED] * round_.accepted + [last]
    return "".join(painted(harmless(piece), colour, enabled) for piece, colour in zip(round_.pieces, colours))


def legend(enabled: bool) -> str:
    return "  ".join(painted(text, colour, enabled) for colour, text in LEGEND)


def summary(counts: Tally, stop_reason: str, rule: str) -> str:
    """One line of measured figures. rule: the acceptance rule's name; lossy ones are marked."""
    rate = counts.tokens_per_second
    parts = [
        f"{counts.tokens} tokens in {counts.rounds} target passes",
        f"{counts.acceptance_length:.2f} tokens per pass" if counts.rounds else "",
        f"{counts.drafted / counts.levels:.1f} draft tokens per depth" if counts.drafted_trees else "",
        f"{counts.acceptance_rate:.0%} of judged draft tokens accepted" if counts.judged else "",
        "" if counts.reach is None else f"the draft's vocabulary covers {counts.reach:.1%} of the probability",
        _rule_in_words(counts, rule) if counts.drafted else "",
        "" if rate is None else f"{rate:.0f} tokens/s" if rate >= 10 else f"{rate:.2g} tokens/s",
        f"stopped: {stop_reason}",
    ]
    return " · ".join(part for part in parts if part)


def _rule_in_words(counts: Tally, rule: str) -> str:
    if counts.distance is None:
        return f"rule: {rule}"
    away = f"{counts.distance:.3f} away on average (total variation)"
    return f"rule: {rule}, LOSSY: the text does not follow the target's distribution, {away}"


# --- advice -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advice:
    """Texts, any of which may hold the name of a model."""

    sentence: Said  # yes or no
    more: Said  # what else is as good, or may be better, and how to find out; empty: nothing
    load: Said  # with how many requests at once it pays on a server; or that it pays only here; empty: not known
    head: tuple[Said, ...]  # of the table
    rows: tuple[tuple[Said, ...], ...]  # the fastest first
    about: Said  # whose figures these are
    undecided: bool  # whether measuring longer may say more
    flags_head: Said  # what these are of
    flags: tuple[tuple[str, Said, Said], ...]  # server, flags, notes; empty where plain decoding is best there
    domains: tuple[tuple[Said, ...], ...] = ()  # a table with its head, where the prompts belong to several


def advice(
    offers: Sequence[Offer],
    machine: str,
    pair: Said,
    passes: Said,
    temperature: float,
    prompts: Said,
    rows: Sequence[Row] = (),
    times: BatchTimes | None = None,
    longer: Said = "",
) -> Advice:
    """offers: at least one. machine, pair, passes: those that they were measured with. prompts: on which. rows: by
    domain. times: of the winner's pair, with many requests. longer: how to measure on, where something is open."""
    best, there, order = winner(offers), on_a_server(offers), ranked(offers)
    values = _values(best) | {"prompts": prompts, "machine": machine, "plain": best.plain}
    open_ones = may_be_best(offers, best)
    undecided = best.outcome == "unclear" or bool(open_ones)
    more = [*_more(offers, best, open_ones), *([longer] if undecided and longer else [])]
    served = [_only_here(best, there)] if best.only_here and best.outcome != "plain" else []
    served += [_load(there, times)] if there is not None and times is not None else []
    head = ("drafter", "gamma", "measured", "interval", "formula", "tokens", "length")
    return Advice(
        sentence=said(f"advice.{best.outcome}", **values),
        more=joined(more, " "),
        load=joined(filter(None, served), " "),
        head=tuple(said(f"advice.head_{name}") for name in head),
        rows=_offer_rows(order, best.plain),
        about=said("advice.about", pair=pair, passes=passes, temperature=temperature),
        undecided=undecided,
        flags_head="" if there is None else said("advice.flags", **_values(there)),
        flags=() if there is None else tuple(_flags(there)),
        domains=work_table(rows) if len({row.domain for row in rows}) > 1 else (),
    )


def as_table(advice: Advice, say: Words) -> str:
    """For a terminal."""
    texts = _in_words(advice, say)
    flags = [f"{server}: {text}{note and f'  ({note})'}" for server, text, note in texts.flags]
    parts = ["\n".join(filter(None, (texts.sentence, texts.more, texts.load)))]
    if flags:
        parts.append("\n".join([f"{texts.flags_head}:", *flags]))
    tables = [(texts.head, *texts.rows), texts.domains]
    return harmless("\n\n".join([*parts, *(aligned(table) for table in tables if table), texts.about]))


def _in_words(advice: Advice, say: Words) -> Any:
    """The same fields, all as strings of one language."""
    return Advice(**{field.name: say.translated(getattr(advice, field.name)) for field in fields(advice)})


def pair_words(pair: ModelPair) -> Said:
    """A pair's name, the precision of its target, and how that was stored."""
    info, stored = pair.info(), pair.stored.get("target")
    dtype = info.dtype if stored is None else said("models.unpacked", dtype=info.dtype, stored=stored)
    return said("advice.pair", pair=info.name, dtype=dtype)


def prompts_words(measured: int, of: int) -> Said:
    """The user's own prompts."""
    return said("advice.on_own", n=of) if measured == of else said("advice.on_some", n=measured, of=of)


def _values(offer: Offer) -> dict[str, Any]:
    return {"drafter": _named(offer), "gamma": offer.num_draft_tokens, "times": _times(offer.ratio)}


def _more(offers: Sequence[Offer], best: Offer, open_ones: Sequence[Offer]) -> Iterator[Said]:
    """That texts loop, other lengths that are as good, and other drafters that may be better."""
    if best.row.loops is not None:
        yield said("advice.loops", percent=100 * best.row.loops)
    gammas = good_lengths(offers, best)
    if best.outcome != "plain" and len(gammas) > 1:
        yield said("advice.range", gammas=", ".join(map(str, gammas)))
    if open_ones:
        names = joined((said("advice.maybe_name", **_values(offer)) for offer in open_ones), ", ")
        yield said("advice.maybe", n=len(open_ones), names=names)


def _only_here(best: Offer, there: Offer | None) -> Said:
    rest = said("advice.nothing_there") if there is None else said("advice.there", **_values(there))
    return joined([said("advice.only_here", drafter=_named(best), stored=best.stored, bits=best.row.bits), rest], " ")


def _offer_rows(order: Sequence[Offer], plain: float) -> tuple[tuple[Said, ...], ...]:
    """With plain decoding at its place among them. plain: its tokens a second beside the best; each other one has those
    of the turns that it took with it, as a machine may be slower an hour later."""
    rows = [_offer_row(offer) for offer in order]
    baseline = (label(None), "", said("advice.times", x=1.0), "", "", said("advice.whole", x=plain), "")
    rows.insert(sum((offer.ratio.low or 0.0) > 1 for offer in order), baseline)
    return tuple(rows)


def _offer_row(offer: Offer) -> tuple[Said, ...]:
    row = offer.row
    return (
        _named(offer),
        str(offer.num_draft_tokens),
        said("advice.times", x=offer.ratio.value),
        _interval(offer.ratio),
        _number(row.speedup_formula),
        said("advice.beside", plain=offer.plain, x=row.tokens_per_second),
        said("advice.decimals", x=row.acceptance_length),
    )


def work_table(rows: Sequence[Row]) -> tuple[tuple[Said, ...], ...]:
    """A head and a row for each contestant and domain, the fastest of each domain first."""
    head = ("domain", "drafter", "gamma", "prompts", "measured", "interval", "length", "interval", "kept")
    order = sorted(rows, key=lambda row: (row.domain != ALL, row.domain, -(row.speedup_measured or 0)))
    return tuple(said(f"advice.head_{name}") for name in head), *(_work_row(row) for row in order)


def _work_row(row: Row) -> tuple[Said, ...]:
    length = row.acceptance_length if row.tokens_a_pass is None else row.tokens_a_pass.value
    return (
        _domain(row),
        title(row, with_gamma=False),
        "–" if row.num_draft_tokens is None else str(row.num_draft_tokens),
        str(row.prompts),
        _number(row.speedup_measured),
        _interval(row.ratio),
        "" if length is None else said("advice.decimals", x=length),
        _interval(row.tokens_a_pass),
        " ".join(f"{100 * rate.value:.0f}" for rate in row.kept_at),
    )


def _domain(row: Row) -> Said:
    """Its name, and how much of its texts loops."""
    name = said("advice.all_domains") if row.domain == ALL else row.domain or said("advice.no_domain")
    return name if row.loops is None else said("advice.domain_loops", domain=name, percent=100 * row.loops)


def _interval(ratio: Ratio | None) -> Said:
    return "" if ratio is None or ratio.low is None else said("advice.between", low=ratio.low, high=ratio.high)


def _times(ratio: Ratio) -> Said:
    """How many times as fast, in words."""
    if ratio.low is None or ratio.high is None:
        return said("advice.about_times", x=ratio.value)
    return said("advice.from_to", low=ratio.low, high=ratio.high)


def _load(best: Offer, times: BatchTimes) -> Said:
    load = load_of(best, times)
    if load is None:
        return ""
    key = "never" if load.most is None else "all" if load.beyond is None else "until"
    return said(f"advice.load_{key}", most=load.most, beyond=load.beyond)


def _flags(offer: Offer) -> list[tuple[str, Said, Said]]:
    return [
        (
            engine.server,
            engine.flags or said("advice.none"),
            joined((said(f"advice.note_{note}") for note in engine.notes), "; ") if engine.notes else "",
        )
        for engine in server_flags(offer)
    ]


def _named(offer: Offer) -> Said:
    name = label(offer.mode)
    return joined([name, f"({offer.draft})"], " ") if offer.draft else name


def _number(value: float | None) -> Said:
    return "–" if value is None else said("advice.times", x=value)


# --- two texts that should be equal -----------------------------------------------------------------------------------


def parting_lines(parting: Parting | None, names: tuple[str, str], say: Words) -> list[str]:
    """The verdict, then what it rests on. names: of the two texts."""
    if parting is None:
        return [say("two_texts.same")]
    wrong_names = [name for name, is_wrong in zip(names, parting.wrong) if is_wrong]
    ends = [name for name, side in zip(names, parting.sides) if not side.token and side.gap > parting.tolerance]
    kind = "wrong" if len(wrong_names) == 1 else "both_wrong" if wrong_names else "ends" if ends else "near"
    lines = [
        say(f"two_texts.{kind}", name=(wrong_names or ends or names)[0]),
        say("two_texts.parts", place=parting.place, before=repr(parting.before)),
    ]
    for name, side in zip(names, parting.sides):
        kind = "side_ends" if not side.token else "side" if side.gap else "side_best"
        lines.append(say(f"two_texts.{kind}", name=name, token=repr(side.token), gap=side.gap))
    for name, side in zip(names, parting.sides):
        if side.gap <= parting.tolerance and side.later is not None:
            place, gap = side.later
            key = "later" if parting.margin <= parting.tolerance else "later_alone"
            lines.append(say(f"two_texts.{key}", name=name, n=place, gap=gap))
    lines.append(say("two_texts.rounding", dtype=parting.dtype, step=parting.step, tolerance=parting.tolerance))
    return lines
