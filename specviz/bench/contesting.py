"""How contestants decode prompts in turn, by the engine, by transformers' `generate` or by a server; who fails ends
alone."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import transformers

from specviz.bench.contest import Row
from specviz.bench.contestants import DEFAULTS, PLAIN, Contestant, Counted, Event, Failed, Progress, Report
from specviz.bench.served import Served, answer_of
from specviz.bench.turns import Amount, Stepper, Steps, WholeText, engine_stepper, take_turns
from specviz.decoding.continuation import Continuation
from specviz.decoding.engine import pending_rounds
from specviz.decoding.request import Request, prepare
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.registry import drafter_class
from specviz.models.pair import ModelPair
from specviz.models.sources import quietly
from specviz.passes.positions import position_limit
from specviz.records.errors import SpecvizError, first_line
from specviz.records.prompts import Preset
from specviz.records.settings import DRAFTING, SETTINGS, DraftParams, RunSettings, SamplingParams
from specviz.records.words import Sentence
from specviz.rules.sampling import fit_width


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
    return plain.but(contestant.on(plain.settings))


def shortened(request: Request, tokens: int) -> Request:
    """The request with at most so many new tokens."""
    settings = request.settings
    return replace(request, settings=replace(settings, max_new_tokens=min(tokens, settings.max_new_tokens)))


def refusal_of(contestant: Contestant, plain: Request) -> Exception | None:
    """Why the pair cannot decode in this way; None if it can."""
    try:
        request_of(contestant, plain)
    except Exception as error:
        return error
    return None


def able(
    pair: ModelPair, contestants: Iterator[Contestant], named: Sequence[str] = ()
) -> tuple[list[Contestant], list[tuple[str, SpecvizError]]]:
    """The contestants this pair can run, and of the others the drafter and why not, each reason once.

    Raises SpecvizError with the reason for a drafter that was `named` and cannot run in any way.
    """
    able: list[Contestant] = []
    refused: dict[tuple[str, str], tuple[str, SpecvizError]] = {}
    shortest = prepare(pair, RunSettings((0,), None, max_new_tokens=1))
    for contestant in contestants:
        error = refusal_of(contestant, shortest) if contestant.engine == "specviz" else None
        if isinstance(error, SpecvizError):
            refused.setdefault((contestant.mode, error.message), (contestant.mode, error))
        else:
            able.append(contestant)  # any other error occurs again when it is measured, and is reported there
    for mode, error in refused.values():
        if mode in named and not any(contestant.mode == mode for contestant in able):
            raise error
    return able, list(refused.values())


def drafting(pair: ModelPair, mode: str, base: RunSettings = DEFAULTS, **settings: Any) -> Contestant:
    """A drafter as a contestant: of `base` it has what the drafter reads, and these settings in place of others."""
    unread = {name: SETTINGS[name].default for name in DRAFTING if name not in drafter_class(pair, mode).parameters}
    return Contestant.of(mode, base=base, **unread | settings)


def entry_of(contestant: Contestant, plain: Request, preset: str = "") -> Row:
    """Its row, still without figures: how it decodes the prompt of `plain`, defaults filled in.

    Raises SpecvizError where the pair cannot decode in this way.
    """
    row = Row(
        title=contestant.title,
        engine=contestant.engine,
        mode=contestant.mode,
        num_draft_tokens=contestant.num_draft_tokens,
        temperature=plain.settings.sampling.temperature,
        preset=preset,
    )
    settings = contestant.on(plain.settings).flat() | dict.fromkeys(("rule", *DRAFTING))
    settings |= {"num_draft_tokens": contestant.num_draft_tokens}
    del settings["prompt"]
    if served := contestant.served:
        row = replace(row, version=served.version, model=served.model, host=served.host, lossless=None)
    if contestant.engine != "specviz" or contestant.mode == PLAIN:
        return replace(row, settings=settings)
    request = request_of(contestant, plain)
    pair, drafter, params = request.pair, request.drafter, request.settings.drafting
    filled = asdict(params) | drafter.settings(pair, params)
    values = {name: filled[name] for name in DRAFTING if name in drafter.parameters}
    values |= {"rule": request.rule.name, "branches": request.branches}
    return replace(
        row,
        settings=settings | values,
        rule=request.rule.name,
        branches=request.branches,
        exit_layer=values.get("exit_layer"),
        bits=values.get("bits"),
        lossless=request.rule.lossless,
        usual_branches=request.branches == drafter.branches(pair, DraftParams()),
    )


def stepper_of(contestant: Contestant, plain: Request) -> Stepper:
    """A contestant on the prompt of `plain`; transformers must have made the text once before.

    Raises SpecvizError where the pair cannot run it.
    """
    if contestant.engine == "specviz":
        return engine_stepper(request_of(contestant, plain))
    served = contestant.served

    def start(repeat: int) -> Steps:
        settings = replace(plain.settings, seed=plain.settings.seed + repeat)
        seeded = replace(plain, settings=settings)
        yield _whole_text(served, seeded) if served else WholeText(new_tokens(contestant, seeded))

    # A stream held back would not hold the server back: what it goes on to make would be handed over in no time.
    return Stepper(start, divisible=False, warm=served is None, served=served is not None)


def new_tokens(contestant: Contestant, plain: Request) -> list[int]:
    """The new tokens of one run."""
    if contestant.served is not None:
        return list(_whole_text(contestant.served, plain).emitted)
    if contestant.engine == "transformers":
        return _by_transformers(contestant, plain)
    return [token for step in pending_rounds(request_of(contestant, plain)) for token in step.emitted]


def _whole_text(served: Served, plain: Request) -> WholeText:
    """A server's text, on its client's clock. A token that it does not name is −1."""
    began = time.perf_counter()
    turn = answer_of(served, plain.prompt, plain.settings)
    (answer,), passes, accepted = turn.answers, turn.passes, turn.accepted
    ids = [-1 if id is None else id for id in answer.ids] or [-1] * turn.tokens
    counted = None if passes is None or accepted is None else Counted(passes, accepted, turn.drafted)
    return WholeText(ids, time.perf_counter() - began - turn.seconds, counted)


# Failures


def reason_of(error: Exception) -> SpecvizError | Sentence:
    """An error for users as it is; of any other its kind and its first line."""
    if isinstance(error, SpecvizError):
        return error
    return Sentence("it failed with {kind}: {reason}", kind=type(error).__name__, reason=first_line(error))


@dataclass
class Failures:
    """The contestants that failed, by title, and why: the others go on. One that failed is not measured again."""

    say: Report = lambda line: None  # receives a line for each
    reasons: dict[str, SpecvizError | Sentence] = field(default_factory=dict)

    @contextlib.contextmanager
    def of(self, contestant: Contestant) -> Iterator[None]:
        """Within it, an error is kept here; plain decoding's is raised, since nothing can be compared without it."""
        try:
            yield
        except Exception as error:
            if contestant.engine == "specviz" and contestant.mode == PLAIN:
                raise
            title = contestant.title
            self.reasons[title] = reason_of(error)
            self.say(f"✗ {title}: {self.reasons[title]}")

    def caught(self, contestant: Contestant, make: Callable[[], Stepper]) -> Stepper:
        """The contestant's stepper; an error in making or running it ends its own run and none of the others."""
        title, stepper = contestant.title, None
        with self.of(contestant):
            stepper = make()

        def start(repeat: int) -> Steps:
            with self.of(contestant):
                if stepper is not None and title not in self.reasons:
                    yield from stepper.start(repeat)

        unmade = Stepper(start, served=contestant.served is not None)
        return unmade if stepper is None else replace(stepper, start=start)


def measure_contest(
    prompts: Iterable[Request], contestants: Sequence[Contestant], amount: Amount, failures: Failures | None = None
) -> Iterator[Event | None]:
    """All contestants, plain decoding first, on each prompt in turn: what a `Contest` hears, and None in between, where
    it can be ended.

    prompts: plain decoding of each, checked. failures: those of earlier contests, which are not measured again.
    """
    failures = Failures() if failures is None else failures
    reported = len(failures.reasons)
    for number, plain in enumerate(prompts):
        steppers = [
            failures.caught(contestant, functools.partial(stepper_of, contestant, plain)) for contestant in contestants
        ]
        for event in take_turns(steppers, amount):
            for title, reason in [*failures.reasons.items()][reported:]:
                yield Failed(title, reason)
            reported = len(failures.reasons)
            yield event if event is None or isinstance(event, Progress) else replace(event, prompt=number)


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
    with quietly(), _without_defaults(pair, contestant.num_draft_tokens):  # it warns of its own calls
        output = pair.target.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config, **assistance, **_following(plain)
        )
    tokens = output[0, ids.shape[1] :].tolist()
    # Assisted, it may go on after the end of what the grammar describes.
    return tokens if plain.grammar is None else Continuation(plain).extend(tokens)[0]


def _following(plain: Request) -> dict[str, object]:
    """What has `generate` follow the request's grammar: the target's rows are masked, and its assistant's."""
    if plain.grammar is None:
        return {}
    grammar = plain.grammar.anew()

    def masked(texts: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        texts_after = [grammar.text_of(text) for text in texts.tolist()]
        return fit_width(grammar.masked(fit_width(rows, grammar.vocab_size), texts_after), rows.shape[-1])

    def over(texts: torch.Tensor, rows: torch.Tensor, **others: object) -> torch.Tensor:
        ended = [not grammar.allowed(grammar.text_of(text)).any() for text in texts.tolist()]
        return torch.tensor(ended, device=texts.device)

    return {
        "logits_processor": transformers.LogitsProcessorList([masked]),
        "stopping_criteria": transformers.StoppingCriteriaList([over]),
    }


@contextlib.contextmanager
def _without_defaults(pair: ModelPair, num_draft_tokens: int | str | None) -> Iterator[None]:
    """Sets the models' own generation settings aside, which fill in whatever a call leaves open."""
    models = [model for model in (pair.target, pair.draft) if model is not None]
    configs = [model.generation_config for model in models]
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
        for model, config in zip(models, configs):
            model.generation_config = config
