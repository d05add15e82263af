"""One timed run of a contestant: by the engine, without its records, by a bare loop, or by transformers' `generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import transformers

from specviz.bench import bare_loop, untraced_loop
from specviz.bench.contestants import PLAIN, Contestant
from specviz.decoding.engine import rounds, unrecorded
from specviz.decoding.request import Request, prepare
from specviz.decoding.round_record import Ledger
from specviz.drafters import DraftModel, PromptLookup
from specviz.drafters.base import Drafter, Setting
from specviz.models.pair import ModelPair
from specviz.records.metrics import Tally, tally
from specviz.records.presets import Preset
from specviz.records.runs import Round
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Workload:
    """What every contestant of a setting is given."""

    pair: ModelPair
    prompt: tuple[int, ...]  # token ids
    temperature: float
    max_new_tokens: int
    seed: int = 0
    preset: str = ""  # name of the preset the prompt is from, if it is

    @classmethod
    def of(
        cls, pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int = 0, chat: bool = False
    ) -> Workload:
        """A preset's workload, with no more new tokens than fit into the context: some loops would run past its end."""
        prompt = pair.encode(preset.prompt, chat).ids
        room = max_new_tokens if pair.context_length is None else pair.context_length - len(prompt)
        return cls(pair, prompt, temperature, min(max_new_tokens, room), seed, preset.name)


@dataclass(frozen=True, slots=True)
class Timing:
    """One finished run."""

    token_ids: tuple[int, ...]  # new tokens
    seconds: float  # wall time around the whole run
    share: float | None  # of these in which it had a processor, see `Stopwatch`
    counts: Tally | None = None  # of its rounds, where the engine records any

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def speed(self) -> float:
        """Tokens per second of wall time, reading the prompt included."""
        return self.tokens / self.seconds


def timed(contestant: Contestant, workload: Workload) -> Timing:
    """One run. Whoever has the last token on the host has waited for the device."""
    return _RUNS[contestant.engine](contestant, workload)


def request_of(contestant: Contestant, workload: Workload) -> Request:
    """The engine's checked request for a contestant. Raises SpecvizError where the pair cannot run it."""
    sampling = SamplingParams(workload.temperature)
    settings = RunSettings(
        workload.prompt, sampling=sampling, max_new_tokens=workload.max_new_tokens, seed=workload.seed
    )
    return prepare(workload.pair, contestant.applied(settings))


def rounds_of(
    contestant: Contestant, workload: Workload, build: Callable[[Setting], Drafter] | None = None
) -> Iterator[Round]:
    """The engine's rounds for a contestant. build: makes another drafter than the contestant's, see `oracle`."""
    return rounds(request_of(contestant, workload), build)


def _with_engine(contestant: Contestant, workload: Workload) -> Timing:
    request = request_of(contestant, workload)
    watch, ledger = Stopwatch(), Ledger()
    for one in unrecorded(request):
        ledger.add(one)
    seconds, share = watch.seconds, watch.share(workload.pair.device.type)
    # With its full trace, as the page has it; what is kept of each round becomes its record once the clock has stopped.
    done = ledger.rounds()
    return Timing(tuple(token for one in done for token in one.emitted), seconds, share, tally(done))


def _untraced(contestant: Contestant, workload: Workload) -> Timing:
    request = request_of(contestant, workload)
    return _around(lambda: untraced_loop.decode(request), workload)


def _bare(contestant: Contestant, workload: Workload) -> Timing:
    given = (workload.pair, workload.prompt, workload.max_new_tokens)
    if contestant.mode == PLAIN:
        return _around(lambda: bare_loop.plain(*given), workload)
    return _around(lambda: bare_loop.draft_model(*given, contestant.num_draft_tokens), workload)


def _with_transformers(contestant: Contestant, workload: Workload) -> Timing:
    """The library's own `generate`: no trace, γ held constant, nothing taken from a checkpoint's defaults."""
    pair, sampled = workload.pair, workload.temperature > 0
    options: dict[str, object] = {"do_sample": sampled, "max_new_tokens": workload.max_new_tokens, "use_cache": True}
    if sampled:
        options |= {"temperature": workload.temperature, "top_k": 0, "top_p": 1.0}
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
    ids = torch.tensor([workload.prompt], device=pair.device)
    torch.manual_seed(workload.seed)

    def generate() -> list[int]:
        output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **assistance)
        return output[0, ids.shape[1] :].tolist()

    return _around(generate, workload)


def _around(run: Callable[[], list[int]], workload: Workload) -> Timing:
    watch = Stopwatch()
    tokens = run()
    return Timing(tuple(tokens), watch.seconds, watch.share(workload.pair.device.type))


_RUNS = {"specviz": _with_engine, "untraced": _untraced, "bare": _bare, "transformers": _with_transformers}
