"""A command's standard streams: they take any character, they may be closed, and whoever reads them may leave."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable
from typing import Literal, TextIO

from specviz.records.errors import SpecvizError

#: Replacements for our own signs in an encoding that lacks them, such as Windows' code pages and ASCII.
_SIGNS = {"✓": "ok", "✗": "NO", "★": "*", "↻": "~", "○": "o", "→": "->", "–": "-", "—": "-", "−": "-", "·": "|"}
_SIGNS |= {"×": "x", "…": "...", "γ": "gamma", "α": "alpha", "τ": "tau", "σ": "sigma", "≤": "<=", "≥": ">="}


def carried_out(work: Callable[[], int | None]) -> int:
    """Does a command's work and returns its exit status: 2 after a sentence about an error that the user can mend, 130
    after Ctrl-C, and 141 where nobody reads on, as after `head`."""
    # Python has none for a stream that is closed from the start, as by ``>&-``.
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout, sys.stderr = sys.stdout or _nowhere("w"), sys.stderr or _nowhere("w")
    streams = (sys.stdout, sys.stderr)
    for stream in streams:
        take_anything(stream)
    try:
        try:
            status = work()
        except SpecvizError as error:
            print(f"specviz: {error}", file=sys.stderr)
            status = 2
        except KeyboardInterrupt:
            status = 130
        sys.stdout.flush()
        return status or 0
    except BrokenPipeError:
        for stream in streams:
            discard_output(stream)
        return 141


def take_anything(stream: TextIO) -> None:
    """Makes a stream replace characters that its encoding lacks, rather than fail, and hand every line on at once, also
    to a pipe: what takes an hour is followed there too."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="specviz", line_buffering=True)


def discard_output(stream: TextIO) -> None:
    """Discards all further output of a stream that is no longer read: Python flushes it when it ends."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _nowhere(mode: Literal["r", "w"]) -> TextIO:
    return open(os.devnull, mode, encoding="utf-8")


def _in_its_place(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_SIGNS.get(character, "?") for character in lacking), error.end


codecs.register_error("specviz", _in_its_place)
