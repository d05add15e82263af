"""Text for a terminal: a run as it is written; and what the page says too: whether it pays, where texts part."""

from __future__ import annotations

import codecs
import io
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TextIO

from specviz.bench.advice import Offer, good_lengths, load_of, ranked, server_flags, winner
from specviz.bench.contest import ALL, Row
from specviz.records.metrics import Tally
from specviz.records.runs import Round
from specviz.records.tables import aligned
from specviz.records.words import Said, Words, joined, said
from specviz.theory.roofline import BatchTimes
from specviz.theory.statistics import Ratio
from specviz.views.run_messages import label, title

if TYPE_CHECKING:
    from specviz.bench.two_texts import Parting

#: The page's colours as 256-colour codes, and its symbols.
ACCEPTED, RECOVERED, BONUS, PLAIN = "38;5;35", "38;5;172", "38;5;32", "0"
LEGEND = ((ACCEPTED, "✓ accepted draft"), (RECOVERED, "↻ recovered"), (BONUS, "★ bonus"), (PLAIN, "○ plain step"))

#: Joiners belong to words and emoji in many scripts, and turn nothing around.
_JOINERS = "\n\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"

#: Replacements for our own signs in an encoding that lacks them, such as Windows' code pages and ASCII.
_SIGNS = {"✓": "ok", "✗": "NO", "★": "*", "↻": "~", "○": "o", "→": "->", "–": "-", "—": "-", "−": "-", "·": "|"}
_SIGNS |= {"×": "x", "…": "...", "γ": "gamma", "α": "alpha", "τ": "tau", "σ": "sigma", "≤": "<=", "≥": ">="}


def _in_its_place(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_SIGNS.get(character, "?") for character in lacking), error.end


codecs.register_error("specviz", _in_its_place)


def take_anything(stream: TextIO) -> None:
    """Makes a stream replace characters that its encoding lacks, rather than fail."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="specviz")


def discard_output(stream: TextIO) -> None:
    """Discards all further output of a stream that is no longer read: Python flushes it when it ends."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


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
    parts = [
        f"{counts.tokens} tokens in {counts.rounds} target passes",
        f"{counts.acceptance_length:.2f} tokens per pass" if counts.rounds else "",
        f"{counts.drafted / counts.levels:.1f} draft tokens per depth" if counts.drafted_trees else "",
        f"{counts.acceptance_rate:.0%} of judged draft tokens accepted" if counts.judged else "",
        "" if counts.reach is None else f"the draft's vocabulary covers {counts.reach:.1%} of the probability",
        _rule_in_words(counts, rule) if counts.drafted else "",
        f"{counts.tokens_per_second:.0f} tokens/s" if counts.rounds else "",
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
    load: Said  # with how many requests at once it still pays; empty where that is not known
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
    rows: Sequence[Row] = (),
    times: BatchTimes | None = None,
) -> Advice:
    """offers: at least one. machine, pair, passes: those that they were measured with. rows: by domain. times: of the
    winner's pair, with many requests."""
    best, order = winner(offers), ranked(offers)
    gammas = good_lengths(offers, best)
    values = {
        "drafter": _named(best),
        "gamma": best.num_draft_tokens,
        "times": _times(best.ratio),
        "machine": machine,
    }
    sentence = said(f"advice.{best.outcome}", **values)
    if best.outcome != "plain" and len(gammas) > 1:
        sentence = joined([sentence, said("advice.range", least=gammas[0], most=gammas[-1])], " ")
    head = ("drafter", "gamma", "measured", "interval", "formula", "tokens", "length")
    return Advice(
        sentence=sentence,
        load="" if best.outcome == "plain" or times is None else _load(best, times),
        head=tuple(said(f"advice.head_{name}") for name in head),
        rows=tuple(_offer_row(offer) for offer in order),
        about=said("advice.about", pair=pair, passes=passes, temperature=temperature),
        flags=() if best.outcome == "plain" else tuple(_flags(best)),
        domains=work_table(rows) if len({row.domain for row in rows}) > 1 else (),
    )


def as_table(advice: Advice, say: Words) -> str:
    """For a terminal."""
    texts = _in_words(advice, say)
    flags = [f"{server}: {text}{note and f'  ({note})'}" for server, text, note in texts.flags]
    parts = [f"{texts.sentence}\n{texts.load}".rstrip()]
    if flags:
        parts.append("\n".join([f"{say('advice.flags')}:", *flags]))
    tables = [(texts.head, *texts.rows), texts.domains]
    return harmless("\n\n".join([*parts, *(aligned(table) for table in tables if table), texts.about]))


def _in_words(advice: Advice, say: Words) -> Any:
    """The same fields, all as strings of one language."""
    return Advice(**{field.name: say.translated(getattr(advice, field.name)) for field in fields(advice)})


def _offer_row(offer: Offer) -> tuple[Said, ...]:
    row = offer.row
    return (
        _named(offer),
        str(offer.num_draft_tokens),
        said("advice.times", x=offer.ratio.value),
        _interval(offer.ratio),
        _number(row.speedup_formula),
        said("advice.whole", x=row.tokens_per_second),
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
        said("advice.all_domains") if row.domain == ALL else row.domain or said("advice.no_domain"),
        title(row, with_gamma=False),
        "–" if row.num_draft_tokens is None else str(row.num_draft_tokens),
        str(row.prompts),
        _number(row.speedup_measured),
        _interval(row.ratio),
        "" if length is None else said("advice.decimals", x=length),
        _interval(row.tokens_a_pass),
        " ".join(f"{100 * rate.value:.0f}" for rate in row.kept_at),
    )


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
        (engine.server, engine.flags or said("advice.none"), said(f"advice.note_{engine.note}") if engine.note else "")
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
            lines.append(say("two_texts.later", name=name, n=place, gap=gap))
    lines.append(say("two_texts.rounding", dtype=parting.dtype, step=parting.step, tolerance=parting.tolerance))
    return lines
