"""The JSON messages of the lab on why speculation works: measured passes, the visitor's runs and what limits each.

Sections that a message leaves out stay on the page; those it has are complete, so losing a message does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specviz.bench.contestants import Forced
from specviz.theory.diagnosis import Diagnosis, RunFigures
from specviz.theory.roofline import ABOUT_ONE, BatchTimes, Curve, PassTimes
from specviz.views.run_messages import as_json


@dataclass(frozen=True, slots=True)
class LabRun:
    """One of the visitor's runs, and what limits it."""

    drafter: str  # display name
    temperature: float
    figures: RunFigures
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Measuring:
    """How far a measurement has come."""

    phase: str  # ``waiting``, ``preparing``, ``running``, ``finished``, ``stopped`` or ``failed``
    result: PassTimes | BatchTimes | Forced | None = None  # None: what was shown stays, except while preparing
    problem: str = ""  # why it failed, or what it waits for


def why_message(
    *,
    story: dict[str, Any] | None = None,
    runs: Sequence[LabRun] | None = None,
    passes: Measuring | None = None,
    batches: Measuring | None = None,
    forced: Measuring | None = None,
) -> str:
    """Any sections of the lab.

    story: the controls' settings for a first run. runs: all that are kept, latest last. passes, batches, forced: of one
    text's passes, of many requests' passes, and of runs whose drafts an oracle makes.
    """
    sections = {
        "story": story,
        "runs": None if runs is None else [_run(run) for run in runs],
        "passes": None if passes is None else _measuring(passes),
        "batches": None if batches is None else _measuring(batches),
        "forced": None if forced is None else _measuring(forced),
    }
    return as_json({"kind": "why"} | {name: section for name, section in sections.items() if section is not None})


def _measuring(one: Measuring) -> dict[str, Any]:
    result = pass_values(one.result) if isinstance(one.result, PassTimes) else one.result and asdict(one.result)
    return {"phase": one.phase, "problem": one.problem, "result": result}


def pass_values(passes: PassTimes) -> dict[str, Any]:
    """What was measured, and where."""
    return {
        "target": passes.target,
        "draft": passes.draft,
        "context": passes.context,
        "device": passes.device,
        "dtype": passes.dtype,
        "passes": passes.kind,
        "threads": passes.threads,
        "fraction": passes.fraction,
        "limit": ABOUT_ONE,
        "cost_coefficient": passes.cost_coefficient,
        "curves": [_curve(curve, passes.limits_hold) for curve in passes.curves],
    }


def _curve(curve: Curve, limits_hold: bool) -> dict[str, Any]:
    """Seconds by width, measured and by the roofline, and what the roofline is made of: None where it is not known."""
    limits = curve.limits if limits_hold else None
    return {
        "role": curve.role,
        "about_one": curve.about_one,
        "bandwidth": limits and limits.bandwidth,
        "peak": limits and limits.peak,
        "weight_bytes": curve.size.weight_bytes,
        "parameters": curve.size.parameters,
        "points": [
            asdict(point) | {"least": limits and limits.seconds(curve.size, point.width)} for point in curve.points
        ],
    }


def _run(run: LabRun) -> dict[str, Any]:
    figures = asdict(run.figures) | {"cost_coefficient": run.figures.cost_coefficient, "seconds": run.figures.seconds}
    return {
        "drafter": run.drafter,
        "temperature": run.temperature,
        "figures": figures,
        "diagnosis": asdict(run.diagnosis) | {"pays": run.diagnosis.pays},
    }
