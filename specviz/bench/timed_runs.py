"""What a contestant does on a workload: by the engine, by a bare loop, or by transformers' `generate`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import transformers

from specviz.bench import bare_loop
from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.turns import Lane, lane_of
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import Request, prepare
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import ModelPair, position_limit
from specviz.records.presets import Preset
from specviz.records.settings import RunSettings, SamplingParams


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
    def of(cls, pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int = 0) -> Workload:
        """A preset's workload, with as many new tokens as fit into both contexts: some loops would run past an end."""
        prompt = pair.encode(preset.prompt, preset.chat).ids
        limits = [pair.context_length, None if pair.draft is None else position_limit(pair.draft)]
        room = min((limit - len(prompt) for limit in limits if limit is not None), default=max_new_tokens)
        return cls(pair, prompt, temperature, min(max_new_tokens, room), seed, preset.name)


def request_of(contestant: Contestant, workload: Workload) -> Request:
    """The engine's checked request for a contestant. Raises SpecvizError where the pair cannot run it."""
    sampling = SamplingParams(workload.temperature)
    settings = RunSettings(
        workload.prompt, sampling=sampling, max_new_tokens=workload.max_new_tokens, seed=workload.seed
    )
    return prepare(workload.pair, contestant.applied(settings))


@dataclass(frozen=True, slots=True)
class Block:
    """All new tokens of a run at once: what decodes elsewhere does not hand them over one by one."""

    emitted: Sequence[int]


def lane(contestant: Contestant, workload: Workload) -> Lane:
    """A contestant on a workload, to take turns; what is not the engine's must have written the text once before.

    Raises SpecvizError where the pair cannot run it.
    """
    if contestant.engine == "specviz":
        return lane_of(request_of(contestant, workload))

    def start(repeat: int) -> Iterator[Block]:
        yield Block(written(contestant, replace(workload, seed=workload.seed + repeat)))

    return Lane(start, divisible=False, warm=True)


def written(contestant: Contestant, workload: Workload) -> list[int]:
    """The new tokens of one run."""
    if contestant.engine == "transformers":
        return _by_transformers(contestant, workload)
    if contestant.engine == "bare":
        given = (workload.pair, workload.prompt, workload.max_new_tokens)
        if contestant.mode == PLAIN:
            return bare_loop.plain(*given)
        return bare_loop.draft_model(*given, contestant.num_draft_tokens)
    return [token for one in pending_rounds(request_of(contestant, workload)) for token in one.emitted]


def _by_transformers(contestant: Contestant, workload: Workload) -> list[int]:
    """By the library's own `generate`: γ held constant, and of the checkpoint's defaults nothing but its end tokens."""
    pair, sampled = workload.pair, workload.temperature > 0
    options: dict[str, object] = {"do_sample": sampled, "max_new_tokens": workload.max_new_tokens, "use_cache": True}
    if sampled:
        options |= {"temperature": workload.temperature, "top_k": 0, "top_p": 1.0}
    ends = list(pair.eos_ids)
    config = transformers.GenerationConfig(**options, pad_token_id=ends[0] if ends else 0, eos_token_id=ends or None)
    assistance: dict[str, object] = {}
    if contestant.mode == DraftModel.name:
        assistance["assistant_model"] = pair.draft
    elif contestant.mode == PromptLookup.name:
        config.prompt_lookup_num_tokens = contestant.num_draft_tokens
    ids = torch.tensor([workload.prompt], device=pair.device)
    torch.manual_seed(workload.seed)
    with _without_defaults(pair, contestant.num_draft_tokens):
        output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **assistance)
    return output[0, ids.shape[1] :].tolist()


@contextlib.contextmanager
def _without_defaults(pair: ModelPair, num_draft_tokens: int | None) -> Iterator[None]:
    """Sets the models' own generation settings aside: what a call leaves open is filled in from these."""
    models = [model for model in (pair.target, pair.draft) if model is not None]
    kept = [model.generation_config for model in models]
    for model in models:
        model.generation_config = transformers.GenerationConfig()
    if pair.draft is not None:
        drafting = pair.draft.generation_config
        drafting.num_assistant_tokens = num_draft_tokens
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0
    try:
        yield
    finally:
        for model, config in zip(models, kept):
            model.generation_config = config
