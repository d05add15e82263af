"""Two greedy texts that should be equal, of any two engines: the target scores the first token at which they part.

A near-tie, so that rounding decides, or a fault; and then whose.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.bench.equal_texts import gaps_of, rows_of
from specviz.models.pair import ModelPair
from specviz.models.placement import dtype_name
from specviz.records.errors import SpecvizError
from specviz.records.metrics import NEAR_TIE, first_difference

#: In float32, another order of sums changes a log probability by less than this.
FLOAT32_TIE = 1e-3

#: Tokens after the parting that are looked at too: a text that lost its way at a tie goes on as the target's.
LATER = 32


@dataclass(frozen=True, slots=True)
class Side:
    """One text at the parting and after it."""

    token: str  # its text; empty where the text ends
    gap: float  # how far it lies below the target's best token there, in log probability
    later: (
        tuple[int, float] | None
    )  # the first token after it that lies below by more than rounding: which, by how much


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts part. Tokens are counted from 1, after the prompt."""

    place: int
    before: str  # the end of what both share
    sides: tuple[Side, Side]
    step: float  # how far neighbouring numbers of the dtype lie apart at the best token's logit
    tolerance: float
    dtype: str

    @property
    def wrong(self) -> tuple[bool, bool]:
        """Whether each text departs from the target's choice by more than rounding; one that ends may be cut off."""
        first, second = (bool(one.token) and (one.gap > self.tolerance or one.later is not None) for one in self.sides)
        return first, second


def cut(
    pair: ModelPair, one: str | Sequence[int], other: str | Sequence[int], prompt: str = "", chat: bool = False
) -> tuple[list[list[int]], int]:
    """Prompt and text as token ids, of both, and how many of these are the prompt's.

    one, other: what two engines wrote greedily after the prompt, as text or token ids. Texts are cut into tokens again,
    which need not be the tokens that an engine chose. Raises SpecvizError, whose field is a parameter's, where nothing
    precedes their difference, or for texts that the target cannot read.
    """
    start, texts = pair.encode(prompt, chat) if prompt else None, []
    for name, text in (("one", one), ("other", other)):
        try:
            texts.append(_ids(pair, start and start.text, start.ids if start else (), text, chat))
        except SpecvizError as error:
            raise error.at(name) from error
    if first_difference(*texts) == 0:
        raise SpecvizError("The texts differ from the first token on: give the prompt that they continue.", "prompt")
    return texts, len(start.ids) if start else 0


def parting(
    pair: ModelPair, one: str | Sequence[int], other: str | Sequence[int], prompt: str = "", chat: bool = False
) -> Parting | None:
    """The first difference of two texts, as the pair's target scores it; None for equal ones. Raises as `cut` does."""
    texts, start = cut(pair, one, other, prompt, chat)
    place = first_difference(*texts)
    if place is None:
        return None
    before = texts[0][:place]
    tolerance = FLOAT32_TIE if pair.dtype == torch.float32 else NEAR_TIE
    sides = [_side(pair, before, text[place : place + 1 + LATER], tolerance) for text in texts]
    best = rows_of(pair, before, texts[0][place : place + 1] or texts[1][place : place + 1])[0].amax().item()
    return Parting(
        place=place + 1 - start,
        before=pair.texts.decode(before[-12:]),
        sides=(sides[0], sides[1]),
        step=torch.finfo(pair.dtype).eps * abs(best),
        tolerance=tolerance,
        dtype=dtype_name(pair.dtype),
    )


def _ids(pair: ModelPair, said: str | None, ids: Sequence[int], text: str | Sequence[int], chat: bool) -> list[int]:
    """Prompt and text as token ids. said, ids: the prompt as the models read it."""
    if not isinstance(text, str):
        return list(pair.encode([*ids, *text]).ids)
    whole = (said or "") + text
    if chat:  # the template has written the special tokens
        whole = pair.tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"]
    return list(pair.encode(whole).ids)


def _side(pair: ModelPair, before: Sequence[int], tokens: Sequence[int], tolerance: float) -> Side:
    if not tokens:
        ends = rows_of(pair, before, [next(iter(pair.eos_ids), 0)])[0]
        gap = min((ends.amax() - ends[end]).item() for end in pair.eos_ids) if pair.eos_ids else float("inf")
        return Side("", gap, None)
    gap, *others = gaps_of(pair, before, tokens)
    later = next(((place, other) for place, other in enumerate(others, start=1) if other > tolerance), None)
    return Side(pair.texts.chip(tokens[0]), gap, later)
