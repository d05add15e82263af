"""One run of a contestant, timed: the engine, the engine without records, a bare loop, and transformers' `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers

from specviz.bench import bare_loop as bare
from specviz.bench import untraced_loop as untraced
from specviz.bench.contest import PLAIN, Contestant
from specviz.decoding import engine
from specviz.drafters import DraftModel, PromptLookup
from specviz.models.pair import ModelPair
from specviz.records.metrics import Tally, tally
from specviz.records.presets import Preset
from specviz.records.settings import DraftParams, SamplingParams


@dataclass(frozen=True, slots=True)
class Job:
    """What every contestant of a setting is given. max_new_tokens: as many as the pair has room for, see `of`."""

    pair: ModelPair
    preset: Preset
    prompt: tuple[int, ...]
    temperature: float
    max_new_tokens: int
    seed: int = 0

    @classmethod
    def of(cls, pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int = 0) -> Job:
        """Nobody is asked for more than fits into the context: some would go on where others stop."""
        prompt = pair.encode(preset.prompt).ids
        room = max_new_tokens if pair.context_length is None else pair.context_length - len(prompt)
        return cls(pair, preset, prompt, temperature, min(max_new_tokens, room), seed)


@dataclass(frozen=True, slots=True)
class Timing:
    """One run: the tokens it made, wall seconds around the whole of it, and its counts where the engine keeps any."""

    token_ids: tuple[int, ...]
    seconds: float
    counts: Tally | None = None

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def speed(self) -> float:
        """Tokens per second of wall time, the prompt's reading included."""
        return self.tokens / self.seconds


def timed(contestant: Contestant, job: Job) -> Timing:
    """One run. Whoever has made the last token has it on the host, so the device has finished."""
    return _RUNS[contestant.engine](contestant, job)


def request_of(contestant: Contestant, job: Job) -> engine.Request:
    """The engine's checked order for a contestant. Raises SpecvizError where the pair cannot run it."""
    return engine.prepare(
        job.pair,
        job.prompt,
        drafter=None if contestant.mode == PLAIN else contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens or 1,
        sampling=SamplingParams(temperature=job.temperature),
        max_new_tokens=job.max_new_tokens,
        seed=job.seed,
        drafting=DraftParams(branches=contestant.branches, exit_layer=contestant.exit_layer),
        rule=contestant.rule,
    )


def _with_engine(contestant: Contestant, job: Job) -> Timing:
    request = request_of(contestant, job)
    start = time.perf_counter()
    # With its full trace, as the page has it.
    done = list(engine.rounds(request))
    seconds = time.perf_counter() - start
    return Timing(tuple(token for one in done for token in one.emitted), seconds, tally(done))


def _untraced(contestant: Contestant, job: Job) -> Timing:
    request = request_of(contestant, job)
    return _around(lambda: untraced.decode(request))


def _bare(contestant: Contestant, job: Job) -> Timing:
    if contestant.mode == PLAIN:
        return _around(lambda: bare.plain(job.pair, job.prompt, job.max_new_tokens))
    gamma = contestant.num_draft_tokens
    return _around(lambda: bare.draft_model(job.pair, job.prompt, job.max_new_tokens, gamma))


def _with_transformers(contestant: Contestant, job: Job) -> Timing:
    """The library's own `generate`, no trace; γ held constant, and nothing taken from checkpoint defaults."""
    pair, sampled = job.pair, job.temperature > 0
    options: dict[str, object] = {"do_sample": sampled, "max_new_tokens": job.max_new_tokens, "use_cache": True}
    if sampled:
        options |= {"temperature": job.temperature, "top_k": 0, "top_p": 1.0}
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
    ids = torch.tensor([job.prompt], device=pair.device)
    torch.manual_seed(job.seed)

    def generate() -> list[int]:
        output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **assistance)
        return output[0, ids.shape[1] :].tolist()

    return _around(generate)


def _around(run: Callable[[], list[int]]) -> Timing:
    start = time.perf_counter()
    tokens = run()
    return Timing(tuple(tokens), time.perf_counter() - start)


_RUNS = {"specviz": _with_engine, "untraced": _untraced, "bare": _bare, "transformers": _with_transformers}
