"""The benchmark: every way to decode in turn, warm, in one process, on the same prompts.

All contestants run once per repeat before any runs again, so a machine that slows down slows all of them; speedups
are ratios within a repeat. Nothing is estimated: a row is the median over repeats of what was measured.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import psutil
import torch
import transformers

from specviz import engine
from specviz.contest import PLAIN, Contestant, pace, standing
from specviz.drafters import DRAFTERS, DraftModel, Eagle, Medusa, PromptLookup, Suffix, drafter_class
from specviz.errors import SpecvizError
from specviz.figures import Report, Row, RulesRow
from specviz.metrics import Tally, tally
from specviz.models import ModelPair
from specviz.presets import PRESETS, Preset
from specviz.records import DraftParams, SamplingParams

Say = Callable[[str], None]

#: Drafters that copy: a longer draft costs them nothing.
COPYING = (PromptLookup.name, Suffix.name)
#: Drafters measured as trees too.
BRANCHING = (DraftModel.name, Medusa.name, Eagle.name)

#: New tokens of the run that warms a contestant up before anything is timed.
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Timing:
    """One run: tokens it made, wall seconds around the whole of it, and its counts where the engine keeps any."""

    tokens: int
    seconds: float
    counts: Tally | None = None

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    gammas: of chains; copied_gammas: of those that copy. tree_gamma, tree_branches: of trees. yardstick_gammas: of
    transformers' assisted generation and prompt lookup. rule_gammas, rule_rounds: of the comparison of two rules on
    the same draws, with at least so many rounds for each γ.
    """

    presets: Sequence[Preset]
    gammas: Sequence[int]
    copied_gammas: Sequence[int]
    tree_gamma: int
    tree_branches: Sequence[int]
    yardstick_gammas: Sequence[int]
    rule_gammas: Sequence[int]
    rule_rounds: int
    max_new_tokens: int
    repeats: int


FULL = Plan(
    presets=PRESETS,
    gammas=(2, 4, 6),
    copied_gammas=(2, 4, 8),
    tree_gamma=4,
    tree_branches=(2, 3, 4),
    yardstick_gammas=(4, 6),
    rule_gammas=(4, 8),
    rule_rounds=1200,
    max_new_tokens=128,
    repeats=3,
)
QUICK = Plan(
    presets=PRESETS[:1],
    gammas=(4,),
    copied_gammas=(4,),
    tree_gamma=4,
    tree_branches=(3,),
    yardstick_gammas=(4,),
    rule_gammas=(4,),
    rule_rounds=200,
    max_new_tokens=64,
    repeats=2,
)


def measure(
    pair: ModelPair,
    quick: bool = False,
    say: Say = lambda line: None,
    only: Sequence[str] = (),
    temperatures: Sequence[float] = (0.0, 1.0),
    presets: Sequence[str] = (),
) -> Report:
    """Runs the whole plan; `say` hears a line of progress a setting.

    only: names of the drafters to measure; presets: of the prompts; empty is all of the plan's. A drafter that this
    pair cannot run is left out, and the report says why. Raises SpecvizError for one that was named (field ``only`` if
    there is no such drafter), for a preset that does not exist (field ``preset``), and for a temperature out of range.
    """
    plan = QUICK if quick else FULL
    if presets:
        plan = replace(plan, presets=[_preset_named(name) for name in presets])
    for name in only:
        if name not in DRAFTERS:
            raise SpecvizError(
                "There is no drafter {name} to measure; choose from {names}.",
                "only",
                name=repr(name),
                names=", ".join(DRAFTERS),
            )
    contestants, refused = _able(pair, _contestants(pair, plan, only or DRAFTERS))
    for mode, error in refused:
        if mode in (PLAIN, *only) and not any(contestant.mode == mode for contestant in contestants):
            raise error
        say(f"left out, {mode}: {error}")
    rows: list[Row] = []
    rules: list[RulesRow] = []
    for temperature in temperatures:
        # Greedy drafts are matched with the target's choice, whatever the rule.
        present = [contestant for contestant in contestants if temperature > 0 or contestant.rule == "auto"]
        for contestant in present:
            _time(contestant, pair, plan.presets[0], temperature, WARM_UP_TOKENS, seed=0)
        for preset in plan.presets:
            say(f"{preset.name}, temperature {temperature:g}: {len(present)} contestants, {plan.repeats} times")
            rows += _measure_setting(pair, present, preset, temperature, plan)
        if temperature > 0 and any(contestant.rule == "block" for contestant in present):
            for gamma in plan.rule_gammas:
                say(f"two rules on the same draws, γ={gamma}, temperature {temperature:g}: {plan.rule_rounds} rounds")
                rules.append(_compare_rules(pair, plan, gamma, temperature))
    return Report(
        machine=describe_machine(pair),
        pair=asdict(pair.info()),
        settings={"max_new_tokens": plan.max_new_tokens, "repeats": plan.repeats, "quick": quick, "only": list(only)},
        rows=rows,
        rules=rules,
        left_out=[{"mode": mode, "reason": error.message} for mode, error in refused],
    )


def _preset_named(name: str) -> Preset:
    for preset in PRESETS:
        if preset.name == name:
            return preset
    names = ", ".join(preset.name for preset in PRESETS)
    raise SpecvizError("There is no preset {name}; choose from {names}.", "preset", name=repr(name), names=names)


def _contestants(pair: ModelPair, plan: Plan, names: Sequence[str]) -> Iterator[Contestant]:
    """Plain decoding, then every drafter named, able or not; then what transformers has of them."""
    yield Contestant(PLAIN)
    for name in names:
        # A drafter that makes trees unless told otherwise is told.
        chain = 1 if name in BRANCHING and drafter_class(pair, name).default_branches > 1 else None
        for gamma in _gammas(pair, plan, name):
            yield Contestant(name, gamma, branches=chain)
        if name == DraftModel.name:
            for gamma in plan.gammas:
                yield Contestant(name, gamma, rule="block")
        if name in BRANCHING:
            for branches in plan.tree_branches:
                yield Contestant(name, plan.tree_gamma, branches=branches)
    assisted = DraftModel.name in names and pair.draft is not None and pair.translation is None
    yardsticks = [DraftModel.name] * assisted + [PromptLookup.name] * (PromptLookup.name in names)
    if yardsticks:
        yield Contestant(PLAIN, engine="transformers")
    for name, gamma in itertools.product(yardsticks, plan.yardstick_gammas):
        yield Contestant(name, gamma, engine="transformers")


def _gammas(pair: ModelPair, plan: Plan, name: str) -> Sequence[int]:
    """Draft lengths for chains of this drafter. Medusa heads do not look further ahead than there are heads."""
    if name in COPYING:
        return plan.copied_gammas
    if name == Medusa.name and pair.medusa is not None:
        return [gamma for gamma in plan.gammas if gamma <= pair.medusa.config.num_heads]
    return plan.gammas


def _able(
    pair: ModelPair, contestants: Iterator[Contestant]
) -> tuple[list[Contestant], list[tuple[str, SpecvizError]]]:
    """The contestants that this pair can run; of the others the drafter and why not, each reason once."""
    able, refused = [], {}
    for contestant in contestants:
        try:
            if contestant.engine == "specviz":
                _settings(_request(contestant, pair, PRESETS[0], 1.0, 1, seed=0))
        except SpecvizError as error:
            refused.setdefault((contestant.mode, error.message), (contestant.mode, error))
        else:
            able.append(contestant)
    return able, list(refused.values())


def _measure_setting(
    pair: ModelPair, contestants: Sequence[Contestant], preset: Preset, temperature: float, plan: Plan
) -> list[Row]:
    timings: dict[Contestant, list[Timing]] = {contestant: [] for contestant in contestants}
    for repeat in range(plan.repeats):
        for contestant in contestants:
            timings[contestant].append(_time(contestant, pair, preset, temperature, plan.max_new_tokens, seed=repeat))
    return [_row(contestant, timings, pair, preset, temperature) for contestant in contestants]


def _time(
    contestant: Contestant, pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int
) -> Timing:
    if contestant.engine == "transformers":
        return _with_transformers(contestant, pair, preset, temperature, max_new_tokens, seed)
    # Our engine records its full trace.
    counts = tally(engine.rounds(_request(contestant, pair, preset, temperature, max_new_tokens, seed)))
    return Timing(counts.tokens, counts.prefill + counts.seconds, counts)


def _request(
    contestant: Contestant, pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int
) -> engine.Request:
    return engine.prepare(
        pair,
        preset.prompt,
        drafter=None if contestant.mode == PLAIN else contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens or 1,
        sampling=SamplingParams(temperature=temperature),
        max_new_tokens=max_new_tokens,
        seed=seed,
        drafting=DraftParams(branches=contestant.branches, exit_layer=contestant.exit_layer),
        rule=contestant.rule,
    )


def _settings(request: engine.Request) -> dict[str, int | float | str | bool]:
    """The drafter's settings, defaults filled in: those of a run that has made no round yet."""
    return engine.collect(request, ()).settings


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
    return Timing(len(tokens) - ids.shape[1], time.perf_counter() - start)


def _row(
    contestant: Contestant,
    timings: dict[Contestant, list[Timing]],
    pair: ModelPair,
    preset: Preset,
    temperature: float,
) -> Row:
    own = timings[contestant]
    plain = [] if contestant.mode == PLAIN else timings[Contestant(PLAIN, engine=contestant.engine)]
    if contestant.engine == "specviz":
        figures = standing([timing.counts for timing in own], [timing.counts for timing in plain])
    else:
        figures = pace([timing.speed for timing in own], [timing.speed for timing in plain])
    known = asdict(figures)
    row = Row(
        title=contestant.title,
        engine=contestant.engine,
        mode=contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens,
        temperature=temperature,
        preset=preset.name,
        tokens=sum(timing.tokens for timing in own),
        speedup_measured=known.pop("speedup"),
        peak_mb=_peak_mb(pair.device),
        **known,
    )
    if contestant.engine == "specviz":
        row.rounds = sum(timing.counts.rounds for timing in own)
        if contestant.mode != PLAIN:
            request = _request(contestant, pair, preset, temperature, 1, seed=0)
            row.rule = request.rule
            row.branches = drafter_class(pair, contestant.mode).branches(pair, request.drafting)
            row.exit_layer = _settings(request).get("exit_layer")
    return row


def _compare_rules(pair: ModelPair, plan: Plan, gamma: int, temperature: float) -> RulesRow:
    """What token by token and block verification keep of the same drafts of the draft model, with the same coins."""
    contestant, kept = Contestant(DraftModel.name, gamma), []
    for seed in itertools.count():
        for preset in plan.presets:
            request = _request(contestant, pair, preset, temperature, plan.max_new_tokens, seed)
            kept += [(one.accepted, other.accepted) for one, other in engine.replay(request, "block")]
            if len(kept) >= plan.rule_rounds:
                return RulesRow.of(DraftModel.name, gamma, temperature, kept)


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


def describe_machine(pair: ModelPair) -> dict[str, str | int | float]:
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
