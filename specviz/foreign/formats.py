"""The names that servers and their tools use: a format is a row of assets/server_formats.json, in some cases with a
small reader.

Names are those of the servers' own sources; docs/metrics.md lists which figures each format has.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specviz.records.assets import ASSETS
from specviz.records.runs import Run

SCHEMA = "specviz.metrics/1"


@dataclass(frozen=True, slots=True)
class ServerFormat:
    """The names that a server uses; of several names for one thing the first that has a value counts."""

    name: str
    source: str = ""  # where its names were read
    marks: tuple[str, ...] = ()  # an object with one of these is about speculation; by default those that count passes,
    required: tuple[str, ...] = ()  # if it has all of these too
    passes: tuple[str, ...] = ()  # target passes that verified a draft
    accepted: tuple[str, ...] = ()  # draft tokens accepted, in all
    drafted: tuple[str, ...] = ()  # draft tokens proposed, in all
    histogram: tuple[str, ...] = ()  # [j]: passes that accepted j draft tokens; or an object {"j": passes}
    each_accepted: tuple[str, ...] = ()  # the same by pass, in order
    each_drafted: tuple[str, ...] = ()
    accepted_at: tuple[str, ...] = ()  # [j]: passes that accepted draft token j + 1
    shares: tuple[str, ...] = ()  # the same as a share of all passes
    length: tuple[str, ...] = ()  # tokens per pass, where nothing says how many passes there were
    rate: tuple[str, ...] = ()  # accepted / drafted, which the counts are checked by
    tokens: tuple[str, ...] = ()  # of the answer
    longest: tuple[str, ...] = ()  # γ: the most that a pass drafts
    running: tuple[str, ...] = ()  # requests at once; in a log also on the line before, or earlier on the same line
    speed: tuple[str, ...] = ()  # tokens a second of all requests together
    #: Whether `drafted` is passes times the configured length, and not what was really proposed.
    nominal: bool = False
    full: bool = False  # whether `accepted_at` or `shares` has a place for each token that a pass can draft
    rounding: float = 0.0  # how far a share may lie from its true value
    percent: bool = False  # whether shares are written in percent
    six_digits: bool = False  # whether totals, unlike `accepted_at`, are written with six digits only
    many: bool = False  # whether one entry counts many requests together
    summed: bool = False  # whether all entries of a text are one: they follow one another step by step
    begins: str = ""  # what a line of a log begins with where it says this, as a regular expression
    last: bool = False  # whether such lines count from the start, so that only the last one counts
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # from what a server says to the names above

    @property
    def marked(self) -> tuple[str, ...]:
        return self.marks or (*self.passes, *self.histogram, *self.each_accepted)


def _passes_of_tokens(block: dict[str, Any]) -> dict[str, Any]:
    """Passes by the flag of each token: the target's own tokens end a pass each. A last pass without was cut off."""
    passes = "".join("d" if drafted else "t" for drafted in block["from_draft"]).split("t")[:-1]
    return {"passes by from_draft": [len(tokens) for tokens in passes], "tokens": len(block["from_draft"])}


def _passes_of_run(trace: dict[str, Any]) -> dict[str, Any]:
    """The rounds of a trace that drafted; in a tree the length of a rejected path is not known."""
    run = Run.from_dict(trace)
    rounds = [round_ for round_ in run.rounds if round_.drafted]
    chains = all(token.parent == place - 1 for round_ in rounds for place, token in enumerate(round_.drafted))
    lengths = [len(round_.drafted) for round_ in rounds]
    return {
        "accepted by round": [round_.accepted for round_ in rounds],
        "drafted by round": lengths if chains else None,
        "drafted": sum(lengths),
        "tokens": len(run.token_ids),
    }


#: The formats that read what a server says before its names count.
_CONVERTERS = {"mlx-lm": _passes_of_tokens, "specviz run": _passes_of_run}


def _format(row: Mapping[str, Any]) -> ServerFormat:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return ServerFormat(convert=_CONVERTERS.get(row["name"]), **fields)


_TABLE = json.loads((ASSETS / "server_formats.json").read_text(encoding="utf-8"))

#: This program's own: a request of ``specviz.metrics/1``; a trace (`Run.save`, `run --json`); a row of `bench --json`.
OWN, RUN, BENCH = map(_format, _TABLE["own"])

#: Objects in the answers of servers, and in the results of benchmarks.
FORMATS = tuple(map(_format, _TABLE["objects"]))

#: Scrapes of /metrics, by what stands before the names there.
SCRAPES = {server: _format(row) for server, row in _TABLE["scrapes"].items()}

#: Lines that a log can have. Names of figures are those of the log, as they are quoted to its reader.
LINES = tuple(map(_format, _TABLE["lines"]))

#: Tables that programs print, a figure a line, by the names before the colon; a share has its position after its name.
TABLES = tuple(map(_format, _TABLE["tables"]))

#: Of benchmarks: what was asked for, else what was measured at most or on average; and tokens a second.
CONCURRENCY, THROUGHPUT = next((kind.running, kind.speed) for kind in FORMATS if kind.speed)
