"""Drafting by copying: what followed the last time these same tokens stood in the text?"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from specviz.drafters.base import Draft, Drafter, Setting
from specviz.models.pair import ModelPair
from specviz.records.runs import DraftParams


class PromptLookup(Drafter):
    """Looks for the text's last few tokens earlier in prompt and output, and proposes what followed them there.

    Saxena 2023, prompt lookup decoding; Yang et al. 2023, arXiv 2304.04487. No model: q is a point mass on each
    copied token. The longest match wins, from `max_ngram` tokens down to `min_ngram`; of several places, the most
    recent one that offers a full draft, else the one that offers most.

    An index from every n-gram to the places that follow it makes a look-up independent of the text's length.
    """

    name: ClassVar[str] = "prompt_lookup"

    def __init__(self, device: torch.device, max_ngram: int = 4, min_ngram: int = 1):
        self.device = device
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self.settings: dict[str, int | float | str | bool] = {"max_ngram": max_ngram, "min_ngram": min_ngram}
        self.text: list[int] = []
        self.followers: dict[tuple[int, ...], list[int]] = {}

    @classmethod
    def build(cls, setting: Setting) -> PromptLookup:
        return cls(setting.pair.device)

    @classmethod
    def branches(cls, pair: ModelPair, params: DraftParams) -> int:
        """It has one continuation to offer, whatever is asked for."""
        return 1

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self._read(prompt)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        self._read(committed[len(self.text) :])
        return Draft.copied(self._continuation(budget), self.device)

    def _read(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the text; an n-gram is indexed once something follows it."""
        for token in tokens:
            place = len(self.text)
            for size in self.sizes:
                if size <= place:
                    self.followers.setdefault(tuple(self.text[place - size :]), []).append(place)
            self.text.append(token)

    def _continuation(self, budget: int) -> list[int]:
        """Up to `budget` tokens that followed the longest earlier occurrence of the text's end; empty if none."""
        for size in self.sizes:
            places = self.followers.get(tuple(self.text[-size:]), ()) if size <= len(self.text) else ()
            if places:
                # Places rise, and the further back one lies the more follows it.
                full = bisect.bisect_right(places, len(self.text) - budget)
                start = places[max(full - 1, 0)]
                return self.text[start : start + budget]
        return []
