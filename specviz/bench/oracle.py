"""An oracle drafter: it knows the target's answer and is right as often as asked.

It prices the machinery at any acceptance rate and says nothing about any draft model. Users cannot draft with it: it is
not one of `DRAFTERS` and runs only where a caller hands it to `engine.rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext, Drafter
from specviz.drafters.choosers import Draws, TopChoices
from specviz.drafters.draft_model import DraftModel
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict


def check(alpha: float) -> None:
    """Raises SpecvizError (field ``alpha``) for what is no probability."""
    if not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise SpecvizError(
            "alpha is how likely a draft token is to be right: a number from 0 to 1, not {value}.",
            "alpha",
            value=alpha,
        )


def oracle(known: Sequence[int], alpha: float, seed: int) -> Callable[[DraftContext], Drafter]:
    """Builds the drafter of one greedy run, for `engine.rounds`; the request names ``draft_model``.

    known: the target's greedy continuation of the request's prompt, by a plain run. alpha: probability that a draft
    token is right, independently of all others. seed: of these coins.
    """

    def build(context: DraftContext) -> OracleDrafter:
        return OracleDrafter(context, script(known, alpha, context.pair.vocab_size, seed))

    return build


def script(known: Sequence[int], alpha: float, vocab_size: int, seed: int) -> list[int]:
    """What the oracle says at each place of the text: the known token with probability `alpha`, else any other one.

    One coin a place makes drafts independent: a place is judged once, since its token is then either kept or replaced
    by the target's. A token that was discarded unjudged may come again, with the coin nobody has seen.
    """
    generator = torch.Generator().manual_seed(seed)
    right = torch.rand(len(known), generator=generator, dtype=torch.float64) < alpha
    truth = torch.tensor(known, dtype=torch.long)
    other = (truth + torch.randint(1, vocab_size, truth.shape, generator=generator)) % vocab_size
    return torch.where(right, truth, other).tolist()


class Told(TopChoices):
    """Computes the draft model's choice, as drafting with it would, and then says the next token of a script."""

    def __init__(self, script: Tensor):
        self.script = script
        self.place = 0

    def one(self, row: Tensor, u: Tensor) -> tuple[Tensor, None]:
        super().one(row, u)
        self.place += 1
        # A view of what is on the device already: no step waits for the host.
        return self.script[self.place - 1 : self.place], None


class OracleDrafter(DraftModel):
    """The pair's draft model with all its passes, over tokens that come from a script instead."""

    name: ClassVar[str] = "oracle"

    def __init__(self, context: DraftContext, script: Sequence[int]):
        if isinstance(context.chooser, Draws):
            raise ValueError("An oracle speaks in greedy runs only; see `check`.")
        self.told = Told(torch.tensor(script, dtype=torch.long, device=context.pair.device))
        super().__init__(replace(context, chooser=self.told, branches=1, params=DraftParams()))
        self.prompt_length = 0
        self.drafted = 0

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.prompt_length = len(prompt)
        super().prefill(prompt, features)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        self.told.place = len(committed) - self.prompt_length
        # Beyond the end of the script it has nothing to say.
        budget = min(budget, len(self.told.script) - self.told.place)
        self.drafted = max(0, budget)
        return super().propose(committed, budget, uniforms) if self.drafted else Draft.copied((), uniforms.device)

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        # In a plain step the draft model has read nothing that could be taken back; it catches up later.
        if self.drafted:
            super().observe(committed, verdict, features)
