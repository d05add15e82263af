"""The one judge of greedy texts that should be equal, of any two engines: the target scores the first token at which
they part, and what follows it.

A near-tie, so that rounding decides, or a fault; and then whose.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specviz.models.pair import ModelPair
from specviz.models.placement import dtype_name
from specviz.passes.devices import Stopwatch
from specviz.passes.readers import new_cached_model
from specviz.records.errors import SpecvizError
from specviz.records.metrics import first_difference, tolerance
from specviz.rules.grammar import Grammar

#: Tokens after the parting that are looked at too: a text that lost its way at a tie goes on as the target's.
LATER = 32


@dataclass(frozen=True, slots=True)
class Side:
    """One text at the parting and after it."""

    token: str  # its text; empty where the text ends
    gap: float  # how far it lies below the target's best token there, in log probability
    later: tuple[int, float] | None  # the first one after it that lies below by more than rounding: which, by how much
    largest: float  # the largest gap of all that were looked at


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts part. Tokens are counted from 1, after the prompt."""

    place: int
    before: str  # the end of what both share
    sides: tuple[Side, Side]
    margin: float  # log p of the target's best token there less that of its second best
    step: float  # how far neighbouring numbers of the dtype lie apart at the best token's logit
    tolerance: float
    dtype: str

    @property
    def wrong(self) -> tuple[bool, bool]:
        """Whether each text departs from the target's choice by more than rounding; one that ends may be cut off."""
        first, second = (bool(side.token) and (side.gap > self.tolerance or bool(side.later)) for side in self.sides)
        return first, second


def cut(
    pair: ModelPair, first: str | Sequence[int], second: str | Sequence[int], prompt: str = "", chat: bool = False
) -> tuple[list[int], list[int], int]:
    """Prompt and text as token ids, of both, and how many of these are the prompt's: all that `parting` takes.

    first, second: what two engines wrote greedily after the prompt, as text or token ids. Texts are cut into tokens
    again, which need not be the tokens that an engine chose. Raises SpecvizError (field ``one``, ``other`` or
    ``prompt``) where nothing precedes their difference, or for texts that the target cannot read.
    """
    start = pair.encode(prompt, chat) if prompt else None
    texts: list[list[int]] = []
    for name, text in (("one", first), ("other", second)):
        try:
            texts.append(_ids(pair, start.text if start else "", start.ids if start else (), text, chat))
        except SpecvizError as error:
            raise error.at(name) from error
    if first_difference(*texts) == 0:
        raise SpecvizError("The texts differ from the first token on: give the prompt that they continue.", "prompt")
    return texts[0], texts[1], min(_shared(start.ids, text) for text in texts) if start else 0


def parting(
    pair: ModelPair,
    first: Sequence[int],
    second: Sequence[int],
    start: int = 0,
    later: int = LATER,
    grammar: Grammar | None = None,
) -> Parting | None:
    """The first difference of two texts, as the pair's target scores it; None for equal ones.

    first, second: token ids that begin alike, of which the first `start` are the prompt's. later: how many
    tokens after the parting are looked at. grammar: that both follow after the prompt.
    """
    place = first_difference(first, second)
    if place is None:
        return None
    before, dtype = first[:place], dtype_name(pair.dtype)
    ends = (text[place : place + 1 + later] for text in (first, second))
    score = functools.partial(rows_of, pair, before, grammar=grammar)
    left, right = (_side(pair, score, end, tolerance(dtype)) for end in ends)
    best, runner_up = score(first[place : place + 1] or second[place : place + 1])[0].topk(2).values.tolist()
    return Parting(
        place=place + 1 - start,
        before=pair.texts.decode(before[-12:]),
        sides=(left, right),
        margin=best - runner_up,
        step=torch.finfo(pair.dtype).eps * abs(best),
        tolerance=tolerance(dtype),
        dtype=dtype,
    )


@torch.inference_mode()
def rows_of(pair: ModelPair, before: Sequence[int], tokens: Sequence[int], grammar: Grammar | None) -> torch.Tensor:
    """The target's logits in float32 at the place of each token, [tokens, vocab], by one plain pass over the text."""
    target = new_cached_model(pair.target, Stopwatch(pair.device))
    target.prefill(before)
    rows = target.forward(target.unread([*before, *tokens[:-1]]), rows_wanted=len(tokens)).float()
    if grammar is None:
        return rows
    return grammar.masked(rows, [grammar.text_of([*before, *tokens[:place]]) for place in range(len(tokens))])


def _ids(pair: ModelPair, prompt: str, ids: Sequence[int], text: str | Sequence[int], chat: bool) -> list[int]:
    """Prompt and text as token ids. prompt, ids: the prompt as the models read it."""
    if not isinstance(text, str):
        return list(pair.encode([*ids, *text]).ids)
    full_text = prompt + text
    if chat:  # the template has written the special tokens
        full_text = pair.tokenizer(full_text, add_special_tokens=False, verbose=False)["input_ids"]
    return list(pair.encode(full_text).ids)


def _shared(prompt: Sequence[int], text: Sequence[int]) -> int:
    """How many of the prompt's tokens a text begins with: the last ones may have merged with what follows."""
    place = first_difference(prompt, text[: len(prompt)])
    return len(prompt) if place is None else place


def _side(pair: ModelPair, score: Callable[[Sequence[int]], torch.Tensor], tokens: Sequence[int], most: float) -> Side:
    """score: `rows_of` these tokens, after what both texts share."""
    if not tokens:
        ends = score([next(iter(pair.eos_ids), 0)])[0]
        gap = min((ends.amax() - ends[end]).item() for end in pair.eos_ids) if pair.eos_ids else float("inf")
        return Side("", gap, None, gap)
    rows = score(tokens)
    chosen = rows.gather(-1, torch.tensor(tokens, device=rows.device).unsqueeze(-1)).squeeze(-1)
    gaps = (rows.amax(-1) - chosen).tolist()
    later = next(((place, gap) for place, gap in enumerate(gaps) if place and gap > most), None)
    return Side(pair.texts.chip(tokens[0]), gaps[0], later, max(gaps))
