"""Speculation at any acceptance rate: the pair's own passes, with drafts that are right with a chosen probability.

An oracle knows the target's answer and speaks in the draft model's place, which makes all of its passes. So the seconds
are real at any acceptance rate and say nothing about any draft model. Users cannot draft with it: it is not one of
`DRAFTERS` and runs only where a caller hands it to the engine. It has to be asked for each draft, so its rounds
lack what a draft model's gain on compiled kernels by being made in one call.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from specviz.bench.contestants import Contestant, Forced, TimedRun, figures_of
from specviz.bench.contesting import plain_request, request_of
from specviz.bench.turns import Amount, Steps, engine_stepper, take_turns
from specviz.decoding.engine import pending_rounds
from specviz.decoding.record import PendingRound
from specviz.drafters.base import DraftContext, Drafter
from specviz.drafters.choosers import Draws, TopChoices
from specviz.drafters.draft_model import DraftModel
from specviz.models.pair import ModelPair
from specviz.passes.fast_passes import kind_of
from specviz.records.errors import SpecvizError
from specviz.records.prompts import PRESETS
from specviz.records.settings import SETTINGS, DraftParams
from specviz.rules.draft import Draft, Verdict

#: New tokens of each run.
TOKENS = 96

#: Repeats of plain decoding and the oracle in turn, and the seconds after which no further one begins.
REPEATS, BUDGET = 7, 8.0


def measure_forced(
    pair: ModelPair,
    alpha: float,
    num_draft_tokens: int,
    tokens: int = TOKENS,
    repeats: int = REPEATS,
    budget: float = BUDGET,
) -> Iterator[Forced | None]:
    """Greedy runs of a story, each with coins of its own: yields after every repeat, and None in between, where it can
    be ended.

    A run ends where rounding leads the text away from the one that the oracle knows, or where the limit of tokens
    leaves no room for a whole draft; reading the prompt does not count. Raises SpecvizError: field ``alpha`` or
    ``num_draft_tokens`` for values out of range, ``drafter`` for a pair whose draft model is missing or counts in
    other tokens.
    """
    check_alpha(alpha)
    SETTINGS["num_draft_tokens"].check("num_draft_tokens", num_draft_tokens)
    _check_draft(pair)
    plain = plain_request(pair, PRESETS[0], 0.0, tokens)
    truth: list[int] = []
    for round_ in pending_rounds(plain):
        truth += round_.emitted
        yield None
    drafts = request_of(Contestant.of(DraftModel.name, num_draft_tokens), plain)
    stepper = engine_stepper(drafts, lambda repeat: oracle(truth, alpha, seed=repeat))
    forced = replace(stepper, start=lambda repeat: _in_full(stepper.start(repeat), truth, num_draft_tokens))
    result = Forced(pair.name, kind_of(pair.passes.fast), alpha, num_draft_tokens, 0, None, 0.0)
    runs: dict[int, list[TimedRun]] = {0: [], 1: []}
    for event in take_turns([engine_stepper(plain), forced], Amount(tokens, repeats, budget, with_prompt=False)):
        if not isinstance(event, TimedRun):
            yield None
            continue
        runs[event.number].append(event)
        if event.number:
            repeat = len(runs[1])
            figures = figures_of(runs[1], runs[0])
            result = replace(result, repeats=repeat, figures=figures, fraction=repeat / repeats)
            yield result
    yield replace(result, fraction=1.0)


def _check_draft(pair: ModelPair) -> None:
    DraftModel.check(pair, DraftParams(branches=1))
    if pair.translation is not None:
        raise SpecvizError(
            "The draft model of this pair uses a different tokenizer, so forced acceptance cannot be measured with it.",
            "drafter",
        )


def _in_full(steps: Steps, truth: Sequence[int], gamma: int) -> Steps:
    """Rounds before the first that did not draft in full or left the text that the oracle knows; at least one."""
    place = 0
    for round_ in steps:
        assert isinstance(round_, PendingRound)
        followed = tuple(truth[place : place + len(round_.emitted)]) == round_.emitted
        full = followed and len(round_.verdict.parents) >= gamma
        if full or not place:
            yield round_
        if not full:
            return
        place += len(round_.emitted)


# The oracle


def check_alpha(alpha: float) -> None:
    """Raises SpecvizError (field ``alpha``) for anything but a probability."""
    if not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise SpecvizError(
            "alpha is the probability that a draft token is right: a number from 0 to 1, not {value}.",
            "alpha",
            value=alpha,
        )


def oracle(truth: Sequence[int], alpha: float, seed: int) -> Callable[[DraftContext], Drafter]:
    """Builds the drafter of one greedy run, for the engine; the request names ``draft_model``.

    truth: the target's greedy continuation of the request's prompt, by a plain run. alpha: probability that a draft
    token is right, independently of all others. seed: of the coins.
    """

    def build(context: DraftContext) -> OracleDrafter:
        return OracleDrafter(context, script(truth, alpha, context.pair.vocab_size, seed))

    return build


def script(truth: Sequence[int], alpha: float, vocab_size: int, seed: int) -> list[int]:
    """The oracle's token at each place of the text: the true token with probability `alpha`, else any other one.

    One coin a place makes drafts independent: a place is judged once, since its token is then either accepted or
    replaced by the target's. A token that was discarded unjudged may come again, with the coin that was not used.
    """
    generator = torch.Generator().manual_seed(seed)
    right = torch.rand(len(truth), generator=generator, dtype=torch.float64) < alpha
    ids = torch.tensor(truth, dtype=torch.long)
    wrong = (ids + torch.randint(1, vocab_size, ids.shape, generator=generator)) % vocab_size
    return torch.where(right, ids, wrong).tolist()


class Scripted(TopChoices):
    """Computes the draft model's choice, as drafting with it would, and then says the next token of a script."""

    def __init__(self, script: Tensor):
        self.script = script
        self.place = 0

    def choose(self, row: Tensor, u: Tensor) -> tuple[Tensor, None]:
        super().choose(row, u)
        self.place += 1
        # A view of a tensor on the device: no step waits for the host.
        return self.script[self.place - 1 : self.place], None


class OracleDrafter(DraftModel):
    """The pair's draft model with all its passes, over tokens that come from a script instead."""

    name: ClassVar[str] = "oracle"

    def __init__(self, context: DraftContext, script: Sequence[int]):
        if isinstance(context.chooser, Draws):
            raise ValueError("An oracle speaks in greedy runs only; see `check_alpha`.")
        self.speaker = Scripted(torch.tensor(script, dtype=torch.long, device=context.pair.device))
        super().__init__(replace(context, chooser=self.speaker, branches=1, params=DraftParams()))
        self.prompt_length = 0
        self.drafted = 0

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.prompt_length = len(prompt)
        super().prefill(prompt, features)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        self.speaker.place = len(committed) - self.prompt_length
        # Beyond the end of the script it has nothing to say.
        budget = min(budget, len(self.speaker.script) - self.speaker.place)
        self.drafted = max(0, budget)
        if not self.drafted:
            return Draft.copied((), uniforms.device)
        place, draft = self.speaker.place, super().propose(committed, budget, uniforms)
        # A prepared pass makes the whole draft in one call and chooses in there: that took its time, and here is what
        # it says. Its cache then holds the choices that nobody heard.
        return replace(draft, tokens=self.speaker.script[place : place + len(draft.parents)])

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        # In a plain step the draft model has read nothing that could be taken back; it catches up later.
        if self.drafted:
            super().observe_draft(committed, verdict, features)
