"""`check`: checks everything once, on this device and with this pair."""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specviz.commands import pairs
from specviz.commands.output import keeping, progress, write
from specviz.commands.work import minutes
from specviz.views.terminal import harmless

if TYPE_CHECKING:
    from specviz.bench.equal_texts import Finding
    from specviz.models.pair import ModelPair

ABOUT = "check everything once on this device with this pair: about a minute"

SCHEMA = "specviz.check/1"

SIGNS: dict[str, str] = {"right": "✓", "wrong": "✗", "slow": "!", "skipped": "–"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all findings there")
    parser.add_argument("--minutes", type=minutes, default=1.0, help="time limit (default: %(default)s)")
    pairs.add_pair_options(parser)


def main(options: argparse.Namespace) -> int:
    """Prints every finding as it comes. Exit status 1 if something is wrong."""
    pair = pairs.load(options)
    from specviz.bench.check import check_pair, summary
    from specviz.bench.equal_texts import Finding

    findings: list[Finding] = []
    began = time.perf_counter()

    def text(interrupted: bool) -> str:
        counts = _counts(findings, time.perf_counter() - began, interrupted)
        return f"{summary(findings, interrupted)}\n{counts}" if findings else ""

    def write_findings(interrupted: bool) -> None:
        report = _report(pair, findings, time.perf_counter() - began, interrupted)
        write(options, "json", json.dumps(report, indent=1, ensure_ascii=False))

    with keeping(text, write_findings):
        for step in check_pair(pair, 60 * options.minutes):
            if isinstance(step, Finding):
                findings.append(step)
                print(harmless(line_of(step)), flush=True)
            else:
                progress(f"{step} …")
    return int(any(finding.state == "wrong" for finding in findings))


def _report(pair: ModelPair, findings: Sequence[Finding], seconds: float, interrupted: bool) -> dict[str, Any]:
    """The values of the JSON file. interrupted: the check was ended before it was over."""
    from specviz.bench.check import summary
    from specviz.bench.machine import describe_machine

    def plain(finding: Finding) -> dict[str, str | None]:
        values = {name: getattr(finding, name) for name in ("state", "what", "seen", "advice")}
        return {name: value and str(value) for name, value in values.items()}

    return {
        "schema": SCHEMA,
        "machine": describe_machine(pair),
        "pair": asdict(pair.info()),
        "seconds": round(seconds, 1),
        "interrupted": interrupted,
        "summary": summary(findings, interrupted),
        "findings": [plain(finding) for finding in findings],
    }


def line_of(finding: Finding) -> str:
    """``✓ trees, target: read in the same way as the branches alone``; advice on a separate line."""
    advice = f"\n    → {finding.advice}" if finding.advice else ""
    return f"{SIGNS[finding.state]} {finding.what}: {finding.seen}{advice}"


def _counts(findings: Iterable[Finding], seconds: float, interrupted: bool) -> str:
    """How many there are of each kind, on a line."""
    states: list[str] = [finding.state for finding in findings]
    counts = [f"{sign} {states.count(state)}" for state, sign in SIGNS.items()]
    return " · ".join([*counts, f"{seconds:.0f} s", *["interrupted"] * interrupted])
