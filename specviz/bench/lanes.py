"""How a contestant decodes a prompt, to take turns: by the engine, by a bare loop, or by transformers' `generate`.

The engine is measured against the bare loop: greedy decoding as short as it gets, in the manner of gpt-fast's
`generate.py`. It runs the same models through the same `CachedModel`, but keeps no coins, probabilities or records.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
import transformers
from torch import Tensor

from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.bench.turns import Emits, Lane, lane_of
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import Request, prepare
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import ModelPair, position_limit
from specviz.passes.cached_model import CachedModel, reader
from specviz.passes.devices import Stopwatch
from specviz.passes.static_passes import between_rounds
from specviz.records.errors import SpecvizError, first_line
from specviz.records.prompts import Preset
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import Sentence
from specviz.rules.draft import chain
from specviz.rules.sampling import fit_width, in_order


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
    if contestant.engine == "bare":
        given = (plain.pair, plain.prompt.ids, plain.settings.max_new_tokens)
        return bare_plain(*given) if contestant.mode == PLAIN else bare_drafting(*given, contestant.num_draft_tokens)
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


# The bare loop


class Unwatched(Stopwatch):
    """A stopwatch that takes no times."""

    def span(self) -> contextlib.nullcontext:
        return contextlib.nullcontext()


def _reader(pair: ModelPair, role: str) -> CachedModel:
    """The pair's ``target`` or ``draft`` with the fast passes that the engine would use, and no clock."""
    return reader(getattr(pair, role), Unwatched(pair.device), pair.passes.fast.get(role))


@torch.inference_mode()
def bare_plain(pair: ModelPair, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """The target's greedy continuation of token ids up to an end token, one pass a token. Returns the new tokens."""
    target = _reader(pair, "target")
    text, made = list(prompt), []
    target.prefill(text)
    while len(made) < max_new_tokens and not pair.eos_ids.intersection(made[-1:]):
        between_rounds(pair.passes.fast)
        made.append(int(target.forward(target.unread(text), keep=1).argmax(-1)))
        target.rewind(len(text))
        text.append(made[-1])
    return made


@torch.inference_mode()
def bare_drafting(pair: ModelPair, prompt: Sequence[int], max_new_tokens: int, num_draft_tokens: int) -> list[int]:
    """The same continuation, drafted by the pair's draft model and verified by the target in one pass a round.

    Draft tokens stay on the device until they are judged: one transfer a round. The draft model reads the target's
    tokens, so there must be no translation between the two vocabularies.
    """
    target, draft = _reader(pair, "target"), _reader(pair, "draft")
    text, made = list(prompt), []
    target.prefill(text)
    draft.prefill(text)
    while len(made) < max_new_tokens and not pair.eos_ids.intersection(made[-1:]):
        between_rounds(pair.passes.fast)
        committed = len(text)
        drafted = _chain_of(pair, draft, text, min(num_draft_tokens, max_new_tokens - len(made) - 1))
        choices = target.verify(text, drafted, chain(len(drafted))).argmax(-1)
        agreed = (choices[: len(drafted)] == drafted).cumprod(0).sum(0, keepdim=True)
        *chosen, accepted = torch.cat([choices, agreed]).tolist()
        target.keep(committed, range(accepted))
        draft.rewind(min(draft.length, committed + accepted))
        # Accepted draft tokens are the target's own choices; its next choice is the bonus or the correction.
        new = _up_to_end(chosen[: accepted + 1], pair.eos_ids)
        made += new
        text += new
    return made


def _chain_of(pair: ModelPair, draft: CachedModel, text: Sequence[int], depth: int) -> Tensor:
    """The draft model's greedy continuation, [depth] int64 on the device."""
    tokens = torch.empty(0, dtype=torch.long, device=draft.device)
    # A padding id that only the target has is read as another one, as in `DraftModel`.
    unread = draft.unread(text).clamp_max(draft.model.get_input_embeddings().num_embeddings - 1)
    for _ in range(depth):
        row = draft.forward(unread, keep=1)
        row = row if pair.draft_columns is None else in_order(row, pair.draft_columns)
        unread = fit_width(row, pair.vocab_size).argmax(-1)
        tokens = torch.cat([tokens, unread])
    return tokens


def _up_to_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """The tokens up to and including the first end token."""
    ends = [place for place, token in enumerate(tokens) if token in eos_ids]
    return tokens[: ends[0] + 1] if ends else tokens
