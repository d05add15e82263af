"""The `check` command: everything about this device and this pair, a line for each thing that was looked at."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specviz.bench.contestants import Say
from specviz.bench.work_command import minutes

if TYPE_CHECKING:
    from specviz.bench.looking import Finding
    from specviz.models.pair import ModelPair

SCHEMA = "specviz.check/1"

SIGNS = {"right": "✓", "wrong": "✗", "slow": "!", "skipped": "–"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options but those that name a pair."""
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all findings there")
    parser.add_argument("--minutes", type=minutes, default=1.0, help="how long it may take (default: %(default)s)")
    parser.add_argument(
        "--full",
        action="store_true",
        help="also every rule, every precision and, on CUDA, models of real sizes: some minutes",
    )


def check(
    pair: ModelPair,
    load: Callable[[str], ModelPair],
    minutes: float,
    full: bool,
    say: Say,
    findings: list[Finding],
) -> None:
    """Prints every finding as it comes, and adds it to `findings`.

    load: the pair once more, in the dtype of this name. say: hears what is being checked.
    """
    from specviz.bench.full_check import long_checks
    from specviz.bench.pair_check import Finding, check_pair

    for one in check_pair(pair, 60 * minutes, long_checks(load) if full else ()):
        if isinstance(one, Finding):
            findings.append(one)
            print(line_of(one), flush=True)
        else:
            say(f"{one} …")


def report(pair: ModelPair, findings: Iterable[Finding], seconds: float, interrupted: bool) -> dict[str, Any]:
    """The values of the JSON file. interrupted: the check was ended before it was over."""
    from specviz.bench.machine import describe_machine

    return {
        "schema": SCHEMA,
        "machine": describe_machine(pair),
        "pair": asdict(pair.info()),
        "seconds": round(seconds, 1),
        "interrupted": interrupted,
        "findings": [{name: value and str(value) for name, value in _plain(one).items()} for one in findings],
    }


def line_of(finding: Finding) -> str:
    """``✓ trees, target: read as the branches alone are``; what to do about it on a line of its own."""
    advice = f"\n    → {finding.advice}" if finding.advice else ""
    return f"{SIGNS[finding.state]} {finding.what}: {finding.seen}{advice}"


def _plain(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in ("state", "what", "seen", "advice")}


def summary(findings: Iterable[Finding], seconds: float, interrupted: bool) -> str:
    """How many there are of each kind, on a line."""
    counts = {sign: sum(SIGNS[one.state] == sign for one in findings) for sign in SIGNS.values()}
    return " · ".join(f"{sign} {count}" for sign, count in counts.items()) + (
        f" · {seconds:.0f} s" + " · interrupted" * interrupted
    )
