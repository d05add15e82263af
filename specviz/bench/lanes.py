"""How a contestant decodes a prompt, to take turns: by the engine or by transformers' `generate`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
import transformers

from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.bench.turns import Emits, Lane, lane_of
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import Request, prepare
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import ModelPair
from specviz.passes.devices import Stopwatch
from specviz.passes.positions import position_limit
from specviz.records.errors import SpecvizError, first_line
from specviz.records.prompts import Preset
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import Sentence


def plain_request(pair: ModelPair, preset: Preset, temperature: float, max_new_tokens: int, seed: int = 0) -> Request:
    """Plain decoding of a preset, with as many new tokens as fit into both contexts: some loops would run past an end.

    Every other contestant decodes the same (`request_of`).
    """
    prompt = pair.encode(preset.prompt, preset.chat).ids
    limits = [pair.context_length, None if pair.draft is None else position_limit(pair.draft)]
    room = min((limit - len(prompt) for limit in limits if limit is not None), default=max_new_tokens)
    sampling, tokens = SamplingParams(temperature), min(max_new_tokens, room)
    return prepare(pair, RunSettings(prompt, None, sampling=sampling, max_new_tokens=tokens, seed=seed))


def request_of(contestant: Contestant, plain: Request) -> Request:
    """The engine's checked request for a contestant. Raises SpecvizError where the pair cannot run it."""
    return plain.but(contestant.applied(plain.settings))


def refusal_of(contestant: Contestant, plain: Request) -> Exception | None:
    """Why the pair cannot decode in this way; None if it can."""
    try:
        request_of(contestant, plain)
    except Exception as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class Block:
    """All new tokens of a run at once: other engines do not hand them over one by one."""

    emitted: Sequence[int]


def lane(contestant: Contestant, plain: Request) -> Lane:
    """A contestant on the prompt of `plain`; any engine but ours must have written the text once before.

    Raises SpecvizError where the pair cannot run it.
    """
    if contestant.engine == "specviz":
        return lane_of(request_of(contestant, plain))

    def start(repeat: int) -> Iterator[Block]:
        settings = replace(plain.settings, seed=plain.settings.seed + repeat)
        yield Block(written(contestant, replace(plain, settings=settings)))

    return Lane(start, divisible=False, warm=True)


def written(contestant: Contestant, plain: Request) -> list[int]:
    """The new tokens of one run."""
    if contestant.engine == "transformers":
        return _by_transformers(contestant, plain)
    return [token for one in pending_rounds(request_of(contestant, plain)) for token in one.emitted]


# Failures


def reason_of(error: Exception) -> SpecvizError | Sentence:
    """An error written for users as it is; of any other its kind and its first line."""
    if isinstance(error, SpecvizError):
        return error
    return Sentence("it failed with {kind}: {reason}", kind=type(error).__name__, reason=first_line(error))


@dataclass
class Failures:
    """The contestants that failed, by title, and why: the others go on. One that failed is not measured again."""

    say: Say = lambda line: None  # receives a line for each
    reasons: dict[str, SpecvizError | Sentence] = field(default_factory=dict)

    @contextlib.contextmanager
    def of(self, title: str) -> Iterator[None]:
        """Within it, an error is kept here; plain decoding's is raised, since nothing can be compared without it."""
        try:
            yield
        except Exception as error:
            if title == PLAIN:
                raise
            self.reasons[title] = reason_of(error)
            self.say(f"✗ {title}: {self.reasons[title]}")

    def caught(self, contestant: Contestant, make: Callable[[], Lane]) -> Lane:
        """The contestant's lane; an error in making or running it ends its own run and none of the others."""
        title, lane = contestant.title, Lane(lambda repeat: iter(()))
        with self.of(title):
            lane = make()

        def start(repeat: int) -> Iterator[Emits]:
            with self.of(title):
                if title not in self.reasons:
                    yield from lane.start(repeat)

        return replace(lane, start=start)


# transformers


def _by_transformers(contestant: Contestant, plain: Request) -> list[int]:
    """By the library's own `generate`: γ held constant, and of the checkpoint's defaults nothing but its end tokens."""
    pair, temperature = plain.pair, plain.settings.sampling.temperature
    options: dict[str, object] = {"do_sample": temperature > 0, "max_new_tokens": plain.settings.max_new_tokens}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    ends = list(pair.eos_ids)
    options |= {"use_cache": True, "pad_token_id": ends[0] if ends else 0, "eos_token_id": ends or None}
    config = transformers.GenerationConfig(**options)
    assistance: dict[str, object] = {}
    if contestant.mode == DraftModel.name:
        assistance["assistant_model"] = pair.draft
    elif contestant.mode == PromptLookup.name:
        config.prompt_lookup_num_tokens = contestant.num_draft_tokens
    ids = torch.tensor([plain.prompt.ids], device=pair.device)
    torch.manual_seed(plain.settings.seed)
    with _without_defaults(pair, contestant.num_draft_tokens):
        output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **assistance)
    return output[0, ids.shape[1] :].tolist()


@contextlib.contextmanager
def _without_defaults(pair: ModelPair, num_draft_tokens: int | None) -> Iterator[None]:
    """Sets the models' own generation settings aside, which fill in whatever a call leaves open."""
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


class Unwatched(Stopwatch):
    """A stopwatch that takes no times."""

    def span(self) -> contextlib.nullcontext:
        return contextlib.nullcontext()
