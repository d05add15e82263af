"""A run in a terminal: the text as it grows, each token coloured by where it came from."""

from __future__ import annotations

import codecs
import io
import os
import unicodedata
from typing import TextIO

from specviz.records.metrics import Tally
from specviz.records.runs import Round

#: The page's colours as 256-colour codes, and its symbols.
ACCEPTED, RECOVERED, BONUS, PLAIN = "38;5;35", "38;5;172", "38;5;32", "0"
LEGEND = ((ACCEPTED, "✓ accepted draft"), (RECOVERED, "↻ recovered"), (BONUS, "★ bonus"), (PLAIN, "○ plain step"))


#: Joiners belong to words and emoji in many scripts, and turn nothing around.
_KEPT = "\n\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


#: What stands for our own signs in an encoding that lacks them, as Windows' code pages and ASCII do.
_SIGNS = {"✓": "ok", "✗": "NO", "★": "*", "↻": "~", "○": "o", "→": "->", "–": "-", "—": "-", "−": "-", "·": "|"}
_SIGNS |= {"×": "x", "…": "...", "γ": "gamma", "α": "alpha", "τ": "tau", "σ": "sigma", "≤": "<=", "≥": ">="}


def _in_its_place(error: UnicodeError) -> tuple[str, int]:
    lacking = error.object[error.start : error.end]
    return "".join(_SIGNS.get(character, "?") for character in lacking), error.end


codecs.register_error("specviz", _in_its_place)


def take_anything(stream: TextIO) -> None:
    """Has a stream show what its encoding lacks by other characters, rather than fail."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="specviz")


def let_go(stream: TextIO) -> None:
    """Sends what is still to come nowhere, once nobody reads the stream: Python flushes it when it ends."""
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
    if character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
        return character
    return chr(0x2400 + ord(character)) if ord(character) < 0x20 else "\N{REPLACEMENT CHARACTER}"


def painted(text: str, colour: str, enabled: bool) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if enabled and text else text


def paint_round(one: Round, enabled: bool) -> str:
    """The round's text: accepted draft tokens, then one token of the target's own."""
    own = PLAIN if not one.drafted else RECOVERED if one.next.kind == "recovered" else BONUS
    colours = [ACCEPTED] * one.accepted + [own]
    return "".join(painted(harmless(piece), colour, enabled) for piece, colour in zip(one.pieces, colours))


def legend(enabled: bool) -> str:
    return "  ".join(painted(text, colour, enabled) for colour, text in LEGEND)


def summary(counts: Tally, stop_reason: str, rule: str) -> str:
    """One line of measured figures. rule: the acceptance rule's name; lossy ones are marked."""
    parts = [
        f"{counts.tokens} tokens in {counts.rounds} target passes",
        f"{counts.acceptance_length:.2f} tokens per pass" if counts.rounds else "",
        f"{counts.drafted / counts.levels:.1f} draft tokens per depth" if counts.drafted_trees else "",
        f"{counts.acceptance_rate:.0%} of judged draft tokens accepted" if counts.judged else "",
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
