"""The benchmark's report: the values of its JSON file, schema ``specviz.bench/1``."""

from __future__ import annotations

from dataclasses import dataclass, field

from specviz.bench import findings
from specviz.bench.bench_rows import (
    BenchRow,
    FormulaCheck,
    RoundOverhead,
    Summary,
    TraceCost,
    formula_checks,
    overhead,
    summaries,
)
from specviz.bench.equal_texts import Agreement
from specviz.bench.machine import Facts
from specviz.bench.machine_limits import BandwidthLimit
from specviz.bench.rule_replay import RulesRow

SCHEMA = "specviz.bench/1"


@dataclass(slots=True)
class BenchReport:
    """A whole benchmark: what was measured, and what follows from its rows."""

    machine: Facts
    pair: dict[str, str | int | None]
    settings: dict[str, int | float | bool | list[str]]
    rows: list[BenchRow]
    tracing: list[TraceCost] = field(default_factory=list)  # the full trace beside the bare loop
    rules: list[RulesRow] = field(default_factory=list)  # one a γ
    left_out: list[dict[str, str]] = field(default_factory=list)  # drafters this pair cannot run: "mode" and "reason"
    failed: list[dict[str, str]] = field(default_factory=list)  # who failed meanwhile: "title" and "reason"
    interrupted: bool = False  # it was ended before it was over
    equality: list[Agreement] = field(default_factory=list)  # of each greedy text, before anything was timed
    limit: list[BandwidthLimit] = field(default_factory=list)  # of target and draft model
    page: None = None  # of older files: speeds with and without a browser watching
    overhead: list[RoundOverhead] = field(init=False)
    formula: list[FormulaCheck] = field(init=False)
    busy: str | None = field(init=False)  # a sentence where the machine was busy at the start
    unsteady: str | None = field(init=False)  # a sentence where it was disturbed meanwhile
    summary: list[Summary] = field(init=False)
    findings: list[str] = field(init=False)
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        self.overhead = overhead(self.rows)
        self.formula = formula_checks(self.rows)
        self.busy = findings.busy(self.machine)
        self.unsteady = findings.unsteady(self.rows, self.settings, self.interrupted)
        self.summary = summaries(self.rows)
        self.findings = findings.findings(self.summary, self.formula)
