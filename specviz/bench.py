"""The benchmark: every way to decode in turn, warm, in one process, on the same prompts.

All contestants run once per repeat before any runs again, so a machine that slows down slows all of them; speedups
are ratios within a repeat. Nothing is estimated: a row is the median over repeats of what was measured.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import psutil
import torch
import transformers

from specviz import engine, theory
from specviz.drafters import DraftModel, PromptLookup
from specviz.metrics import Tally, tally
from specviz.models import ModelPair
from specviz.presets import PRESETS, STORIES, Preset
from specviz.records import SamplingParams

SCHEMA = "specviz.bench/1"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to decode. engine: specviz or transformers. mode: plain or a drafter's name."""

    engine: str
    mode: str
    num_draft_tokens: int | None = None

    @property
    def title(self) -> str:
        return f"{self.engine} {self.mode}" + (f" γ={self.num_draft_tokens}" if self.num_draft_tokens else "")


@dataclass(frozen=True, slots=True)
class Timing:
    """One run: tokens it made, wall seconds around the whole of it, and its counts where the engine keeps any."""

    tokens: int
    seconds: float
    counts: Tally | None


@dataclass(slots=True)
class Row:
    """One contestant on one preset at one temperature; None where a figure does not apply.

    tokens_per_second: median, spread: [least, most] over repeats. speedup_measured: median ratio to the same
    engine's plain run of the same repeat. speedup_formula: Thm 3.8 from the measured α and c. seconds: share of a
    round in drafting, verifying and the rest. peak_mb: the process's (on CUDA the device's) peak so far.
    """

    engine: str
    mode: str
    num_draft_tokens: int | None
    temperature: float
    preset: str
    tokens: int
    tokens_per_second: float
    spread: tuple[float, float]
    speedup_measured: float | None
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    cost_coefficient: float | None = None
    speedup_formula: float | None = None
    overhead_share: float | None = None
    phase_share: dict[str, float] | None = None
    peak_mb: float | None = None


@dataclass(slots=True)
class Report:
    machine: dict[str, str | int | float]
    pair: dict[str, str | int | None]
    settings: dict[str, int | float | bool]
    rows: list[Row]
    summary: list[dict[str, str | int | float | None]] = field(default_factory=list)
    page: dict[str, float] | None = None
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. gammas: of our drafters; yardstick_gammas: of transformers' assisted generation."""

    presets: Sequence[Preset]
    gammas: Sequence[int]
    yardstick_gammas: Sequence[int]
    max_new_tokens: int
    repeats: int
    temperatures: Sequence[float] = (0.0, 1.0)


FULL = Plan(presets=PRESETS, gammas=range(1, 9), yardstick_gammas=(4, 6), max_new_tokens=128, repeats=3)
QUICK = Plan(presets=PRESETS[:1], gammas=(2, 4, 6), yardstick_gammas=(4,), max_new_tokens=64, repeats=2)


def measure(pair: ModelPair, quick: bool = False, say: Say = lambda line: None) -> Report:
    """Runs the whole plan; `say` hears a line of progress a setting."""
    plan = QUICK if quick else FULL
    contestants = list(_contestants(pair, plan))
    for contestant in contestants:
        _time(contestant, pair, plan.presets[0], plan.temperatures[0], 16, seed=0)
    rows: list[Row] = []
    for temperature in plan.temperatures:
        for preset in plan.presets:
            say(f"{preset.name}, temperature {temperature:g}: {len(contestants)} contestants, {plan.repeats} times")
            rows += _measure_setting(pair, contestants, preset, temperature, plan)
    report = Report(
        machine=_machine(pair),
        pair=asdict(pair.info()),
        settings={"max_new_tokens": plan.max_new_tokens, "repeats": plan.repeats, "quick": quick},
        rows=rows,
    )
    report.summary = _summaries(rows)
    return report


def _contestants(pair: ModelPair, plan: Plan) -> Iterator[Contestant]:
    for library, gammas in (("specviz", plan.gammas), ("transformers", plan.yardstick_gammas)):
        yield Contestant(library, "plain")
        for gamma in gammas:
            if pair.draft is not None:
                yield Contestant(library, DraftModel.name, gamma)
            yield Contestant(library, PromptLookup.name, gamma)


def _measure_setting(
    pair: ModelPair, contestants: Sequence[Contestant], preset: Preset, temperature: float, plan: Plan
) -> list[Row]:
    timings: dict[Contestant, list[Timing]] = {contestant: [] for contestant in contestants}
    for repeat in range(plan.repeats):
        for contestant in contestants:
            timings[contestant].append(_time(contestant, pair, preset, temperature, plan.max_new_tokens, seed=repeat))
    return [_row(contestant, timings, preset, temperature, pair.device) for contestant in contestants]


def _time(
    contestant: Contestant, pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int
) -> Timing:
    generate = _with_specviz if contestant.engine == "specviz" else _with_transformers
    return generate(contestant, pair, preset, temperature, max_new_tokens, seed)


def _with_specviz(
    contestant: Contestant, pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int
) -> Timing:
    """Our engine with its full trace recorded."""
    request = engine.prepare(
        pair,
        preset.prompt,
        drafter=None if contestant.mode == "plain" else contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens or 1,
        sampling=SamplingParams(temperature=temperature),
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    start = time.perf_counter()
    rounds = list(engine.rounds(request))
    seconds = time.perf_counter() - start
    counts = tally(rounds)
    return Timing(counts.tokens, seconds, counts)


def _with_transformers(
    contestant: Contestant, pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int
) -> Timing:
    """The library's own `generate`, no trace; γ held constant, and nothing taken from checkpoint defaults."""
    options: dict[str, object] = {"do_sample": temperature > 0, "max_new_tokens": max_new_tokens, "use_cache": True}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    ends = list(pair.eos_ids)
    config = transformers.GenerationConfig(**options, pad_token_id=ends[0] if ends else 0, eos_token_id=ends or None)
    assistance: dict[str, object] = {}
    if contestant.mode == DraftModel.name:
        drafting = pair.draft.generation_config
        drafting.num_assistant_tokens = contestant.num_draft_tokens
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0
        assistance["assistant_model"] = pair.draft
    elif contestant.mode == PromptLookup.name:
        config.prompt_lookup_num_tokens = contestant.num_draft_tokens
    ids = torch.tensor([pair.encode(preset.prompt).ids], device=pair.device)
    torch.manual_seed(seed)
    start = time.perf_counter()
    output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **assistance)
    tokens = output[0].tolist()
    return Timing(len(tokens) - ids.shape[1], time.perf_counter() - start, None)


def _row(
    contestant: Contestant,
    timings: dict[Contestant, list[Timing]],
    preset: Preset,
    temperature: float,
    device: torch.device,
) -> Row:
    own, plain = timings[contestant], timings[Contestant(contestant.engine, "plain")]
    speeds = [timing.tokens / timing.seconds for timing in own]
    ratios = [speed / (other.tokens / other.seconds) for speed, other in zip(speeds, plain)]
    row = Row(
        engine=contestant.engine,
        mode=contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens,
        temperature=temperature,
        preset=preset.name,
        tokens=sum(timing.tokens for timing in own),
        tokens_per_second=statistics.median(speeds),
        spread=(min(speeds), max(speeds)),
        speedup_measured=None if contestant.mode == "plain" else statistics.median(ratios),
        peak_mb=_peak_mb(device),
    )
    if own[0].counts is not None:
        _add_counts(row, [timing.counts for timing in own], [timing.counts for timing in plain])
    return row


def _add_counts(row: Row, own: Sequence[Tally], plain: Sequence[Tally]) -> None:
    """What our engine's records say beyond speed, over all repeats together."""
    seconds = sum(counts.seconds for counts in own)
    row.overhead_share = 1 - sum(counts.model_seconds for counts in own) / seconds
    phases = {"draft": "draft_seconds", "verify": "verify_seconds", "rest": "accept_seconds"}
    row.phase_share = {name: sum(getattr(counts, key) for counts in own) / seconds for name, key in phases.items()}
    row.acceptance_length = 1 + sum(counts.accepted for counts in own) / sum(counts.rounds for counts in own)
    judged, drafted = sum(counts.judged for counts in own), sum(counts.drafted for counts in own)
    if drafted and judged:
        row.acceptance_rate = sum(counts.accepted for counts in own) / judged
        draft_step = sum(counts.draft_seconds for counts in own) / drafted
        target_pass = sum(counts.verify_seconds for counts in plain) / sum(counts.rounds for counts in plain)
        row.cost_coefficient = draft_step / target_pass
        row.speedup_formula = theory.expected_speedup(
            row.acceptance_rate, row.num_draft_tokens or 0, row.cost_coefficient
        )


def _peak_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    memory = psutil.Process().memory_info()
    # Windows has its own name for the peak; Linux and macOS keep it in the resource usage.
    if hasattr(memory, "peak_wset"):
        return memory.peak_wset / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)


def _machine(pair: ModelPair) -> dict[str, str | int | float]:
    machine: dict[str, str | int | float] = {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "device": torch.cuda.get_device_name(pair.device) if pair.device.type == "cuda" else "cpu",
        "cuda": torch.cuda.is_available(),
        "dtype": str(pair.dtype).removeprefix("torch."),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return machine


def _summaries(rows: Sequence[Row]) -> list[dict[str, str | int | float | None]]:
    """Per temperature and contestant, the speed over the story presets and over each other preset."""
    stories = {preset.name for preset in STORIES}
    groups: dict[tuple[float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.temperature, "stories" if row.preset in stories else row.preset), []).append(row)
    summaries = []
    for (temperature, group), members in groups.items():
        speeds = _speeds(members)
        for (library, mode, gamma), speed in speeds.items():
            if mode == "plain" and library == "specviz":
                against = ("transformers", "plain", None)
            elif library == "specviz":
                against = ("transformers", mode, gamma)
            else:
                against = None
            summaries.append(
                {
                    "group": group,
                    "temperature": temperature,
                    "engine": library,
                    "mode": mode,
                    "num_draft_tokens": gamma,
                    "tokens_per_second": speed,
                    "speedup_measured": None if mode == "plain" else speed / speeds[library, "plain", None],
                    "against_transformers": speed / speeds[against] if against in speeds else None,
                }
            )
    return summaries


def _speeds(rows: Sequence[Row]) -> dict[tuple[str, str, int | None], float]:
    """Tokens per second of each contestant over several presets: the harmonic mean, as of equally long texts."""
    by_contestant: dict[tuple[str, str, int | None], list[float]] = {}
    for row in rows:
        by_contestant.setdefault((row.engine, row.mode, row.num_draft_tokens), []).append(row.tokens_per_second)
    return {key: statistics.harmonic_mean(speeds) for key, speeds in by_contestant.items()}


def save(report: Report, path: pathlib.Path) -> None:
    path.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")


def table(report: Report) -> str:
    """The report for people: each contestant on each preset, then the groups."""
    lines = [f"{key}: {value}" for key, value in report.machine.items()]
    header = (
        f"{'preset':<12}{'T':>4}  {'contestant':<34}{'tok/s':>7}{'spread':>15}{'speedup':>9}{'formula':>9}"
        f"{'α':>6}{'len':>6}{'c':>6}{'draft':>7}{'verify':>8}{'rest':>6}{'outside':>9}"
    )
    lines += ["", header, "-" * len(header)]
    lines += [_line(row) for row in report.rows]
    lines += ["", f"{'group':<12}{'T':>4}  {'contestant':<34}{'tok/s':>7}{'speedup':>9}{'vs transformers':>17}"]
    for entry in report.summary:
        title = Contestant(entry["engine"], entry["mode"], entry["num_draft_tokens"]).title
        lines.append(
            f"{entry['group']:<12}{entry['temperature']:>4g}  {title:<34}{entry['tokens_per_second']:>7.0f}"
            f"{_cell(entry['speedup_measured'], '.2f', 9)}{_cell(entry['against_transformers'], '.2f', 17)}"
        )
    if report.page:
        lines += ["", f"watched by a browser: {report.page['ratio']:.2f} of the speed without one"]
    lines += ["", f"peak memory of this process: {max(row.peak_mb or 0 for row in report.rows):.0f} MB"]
    return "\n".join(lines)


def _line(row: Row) -> str:
    title = Contestant(row.engine, row.mode, row.num_draft_tokens).title
    shares = row.phase_share or {}
    return (
        f"{row.preset:<12}{row.temperature:>4g}  {title:<34}{row.tokens_per_second:>7.0f}"
        f"{f'{row.spread[0]:.0f}–{row.spread[1]:.0f}':>15}{_cell(row.speedup_measured, '.2f', 9)}"
        f"{_cell(row.speedup_formula, '.2f', 9)}{_cell(row.acceptance_rate, '.2f', 6)}"
        f"{_cell(row.acceptance_length, '.2f', 6)}{_cell(row.cost_coefficient, '.2f', 6)}"
        f"{_cell(shares.get('draft'), '.0%', 7)}{_cell(shares.get('verify'), '.0%', 8)}"
        f"{_cell(shares.get('rest'), '.0%', 6)}{_cell(row.overhead_share, '.1%', 9)}"
    )


def _cell(value: float | None, form: str, width: int) -> str:
    return f"{'–' if value is None else format(value, form):>{width}}"
