"""The JSON messages of the tabs Compare and Why it works: each is complete in itself, so losing one does no harm."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specviz.bench.contest import Row
from specviz.bench.contestants import Forced
from specviz.bench.served import SERVED
from specviz.records.runs import DraftedToken, Round, Speedup
from specviz.records.settings import DRAFTING, PLAIN
from specviz.records.words import Said, joined, said
from specviz.theory.diagnosis import Diagnosis, RunFigures
from specviz.theory.roofline import ABOUT_ONE, BatchTimes, Curve, Experts, PassTimes, expected_experts
from specviz.views.labels import drafting, label
from specviz.views.run_messages import message

# --- Compare ----------------------------------------------------------------------------------------------------------


def contest_message(
    rows: Sequence[Row],
    *,
    phase: str,
    text: Said,
    fraction: float,
    repeats: int = 1,
    rules_alike: bool = False,
    texts: dict[str, Any] | None = None,
    domains: Sequence[Sequence[Said]] = (),
) -> str:
    """The whole table. phase: ``running``, ``finished`` or ``stopped``. text: the current step, in a sentence.

    rules_alike: several rules were asked for, which are one at temperature 0.

    domains: on prompts of one's own, a second table with its head, by domain; see `terminal.work_table`.

    texts: at temperature 0, how the lossless texts compare with plain decoding's: ``{"of": how many, "partings":
    [{"name": …, and the parting of specviz.records.metrics}]}``.
    """
    best = fastest(rows)
    table = [_contest_row(row, row is best, rules_alike) for row in rows]
    shared = {"phase": phase, "text": text, "fraction": fraction}
    return message("contest", **shared, repeats=repeats, rows=table, texts=texts, domains=domains)


def fastest(rows: Iterable[Row]) -> Row | None:
    """The lossless drafter with the highest measured speedup; a lossy one does not run on the same terms."""
    measured = [row for row in rows if row.lossless and row.speedup_measured is not None]
    return max(measured, key=lambda row: row.speedup_measured or 0.0, default=None)


def _contest_row(row: Row, best: bool, rules_alike: bool) -> dict[str, Any]:
    names = ("num_draft_tokens", "branches", "usual_branches", "lossless", "repeats", "reason")
    values = {name: getattr(row, name) for name in names}
    # At temperature 0 the rule is only named if others were asked for.
    alike = said("compare.rules_alike") if rules_alike else ""
    rule = "" if row.rule is None else said(f"ways.rule_{row.rule}") if row.temperature else alike
    texts = {"drafter": label(row.mode), "rule": rule, "parameters": joined(drafting(row.settings), ", ")}
    if row.host is not None:
        texts |= {
            "drafter": f"{row.engine} {row.version or ''}".rstrip(),
            "parameters": joined([row.host, *([] if row.mode == SERVED else [label(row.mode)])]),
        }
    use = to_use(row) if best and row.mode != PLAIN else None
    return values | texts | {"best": best, "figures": row.figures(), "use": use}


def to_use(row: Row) -> dict[str, Any]:
    """The page's settings by which a run drafts as this row did."""
    names = ("drafter", "num_draft_tokens", *DRAFTING, *(("rule",) if row.temperature else ()))
    return {name: value for name in names if (value := row.settings.get(name)) is not None}


@dataclass(slots=True)
class Replayed:
    """Two rules judging the same drafts and coins, counted round by round."""

    rounds: int = 0
    drafted: int = 0
    kept: tuple[int, int] = (0, 0)  # draft tokens accepted by the token rule and by the block rule
    ahead: int = 0  # rounds in which the block rule accepted more
    behind: int = 0  # and fewer
    #: Those rounds as the page shows them: each draft token with its coin u, the token rule's bound min(1, p/q) and
    #: the block rule's h; and the token that each rule appends to those it accepted.
    differing: list[dict[str, Any]] = field(default_factory=list)

    def add(self, token: Round, block: Round) -> None:
        self.rounds += 1
        self.drafted += len(token.drafted)
        self.kept = (self.kept[0] + token.accepted, self.kept[1] + block.accepted)
        self.ahead += block.accepted > token.accepted
        self.behind += block.accepted < token.accepted
        if block.accepted != token.accepted:
            self.differing.append(_differing(token, block))


def replay_message(counts: Replayed, *, phase: str, text: Said, fraction: float) -> str:
    """The rules' totals; the rounds in which they differ are sent once it is over."""
    totals = {name: getattr(counts, name) for name in ("rounds", "drafted", "kept", "ahead", "behind")}
    differing = [] if phase == "running" else counts.differing
    return message("replay", phase=phase, text=text, fraction=fraction, **totals, differing=differing)


def _differing(by_token: Round, by_block: Round) -> dict[str, Any]:
    def drafted(token: DraftedToken) -> dict[str, Any]:
        ratio = min(1.0, token.p / token.q) if token.p is not None and token.q else None
        return {"text": token.text, "u": token.u, "ratio": ratio, "h": token.accept_prob}

    return {
        "index": by_token.index,
        "drafted": list(map(drafted, by_block.drafted)),
        "kept": [by_token.accepted, by_block.accepted],
        "next": [{"text": round_.next.text, "kind": round_.next.kind} for round_ in (by_token, by_block)],
    }


# --- Why it works -----------------------------------------------------------------------------------------------------

#: Tokens of the pass whose experts are told: a round of four draft tokens.
VERIFIED = 5


@dataclass(frozen=True, slots=True)
class LabRun:
    """One of the visitor's runs, and its diagnosis."""

    drafter: Said
    temperature: float
    figures: RunFigures
    diagnosis: Diagnosis
    measured: Speedup | None = None
    repeats: int = 0  # in turn with plain decoding, all of which the figures are of; 0: of the shown run alone
    disturbed: str = ""  # see `LiveRun.disturbed`


@dataclass(frozen=True, slots=True)
class Measuring:
    """A measurement's progress."""

    phase: str  # ``waiting``, ``preparing``, ``running``, ``finished``, ``stopped`` or ``failed``
    result: PassTimes | BatchTimes | Forced | None = None  # None keeps the result on the screen, except while preparing
    problem: str = ""  # why it failed, or why it waits


def why_message(
    *,
    story: dict[str, Any] | None = None,
    runs: Sequence[LabRun] | None = None,
    passes: Measuring | None = None,
    batches: Measuring | None = None,
    forced: Measuring | None = None,
) -> str:
    """Any sections of the lab.

    story: the controls' settings for a first run. runs: those the lab holds, latest last. passes, batches, forced: of
    one text's passes, of many requests' passes, and of runs whose drafts an oracle makes.
    """
    measured = {"passes": passes, "batches": batches, "forced": forced}
    sections: dict[str, Any] = {name: measuring and _measuring(measuring) for name, measuring in measured.items()}
    sections |= {"story": story, "runs": None if runs is None else [_run(run) for run in runs]}
    return message("why", **{name: section for name, section in sections.items() if section is not None})


def _measuring(measuring: Measuring) -> dict[str, Any]:
    result = measuring.result
    values = pass_values(result) if isinstance(result, PassTimes) else result and asdict(result)
    return {"phase": measuring.phase, "problem": measuring.problem, "result": values}


def pass_values(passes: PassTimes) -> dict[str, Any]:
    """Measured passes, with their pair and device."""
    names = ("target", "draft", "context", "device", "dtype", "threads", "fraction", "cost_coefficient")
    curves = [_curve(curve, passes.limits_hold) for curve in passes.curves]
    values = {name: getattr(passes, name) for name in names}
    return values | {"passes": passes.kind, "limit": ABOUT_ONE, "curves": curves}


def _curve(curve: Curve, limits_hold: bool) -> dict[str, Any]:
    """Seconds by width, measured and by the roofline, with the roofline's parameters: None if they are not known."""
    limits = curve.limits if limits_hold else None
    return {
        "role": curve.role,
        "about_one": curve.about_one,
        "bandwidth": limits and limits.bandwidth,
        "peak": limits and limits.peak,
        "weight_bytes": curve.size.weight_bytes,
        "parameters": curve.size.parameters,
        "experts": curve.size.experts and _experts(curve.size.experts),
        "points": [
            asdict(point) | {"least": limits and limits.seconds(curve.size, point.width)} for point in curve.points
        ],
    }


def _experts(experts: Experts) -> dict[str, Any]:
    """What one token reads, and what a pass over several: counted, and if all experts were alike."""
    width = min(experts.read, key=lambda width: abs(width - VERIFIED))
    expected = expected_experts(experts.number, experts.chosen, width)
    counts = {"number": experts.number, "chosen": experts.chosen, "k": width}
    return counts | {"read": experts.read[width], "expected": expected}


def _run(run: LabRun) -> dict[str, Any]:
    figures = asdict(run.figures) | {"cost_coefficient": run.figures.cost_coefficient, "seconds": run.figures.seconds}
    return {
        "drafter": run.drafter,
        "temperature": run.temperature,
        "figures": figures,
        "diagnosis": asdict(run.diagnosis) | {"pays": run.diagnosis.pays},
        "low": run.measured and run.measured.low,
        "high": run.measured and run.measured.high,
        "repeats": run.repeats,
        "disturbed": run.disturbed,
    }
