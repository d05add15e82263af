"""Drafting by copying: what followed the last time these tokens occurred?"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from specviz.drafters.base import DraftContext, Drafter
from specviz.models.pair import ModelPair
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft


class PromptLookup(Drafter):
    """Finds the last few tokens earlier in prompt and output, and proposes what followed them there.

    Saxena 2023, prompt lookup decoding; Yang et al. 2023, arXiv 2304.04487. No model: q is a point mass on each
    copied token. The longest match wins, from `MAX_NGRAM` tokens down to `MIN_NGRAM`; of several places, the most
    recent one that offers a full draft, else the one that offers most.

    An index from every n-gram to the places after it makes lookup time independent of the text's length.
    """

    name: ClassVar[str] = "prompt_lookup"

    MAX_NGRAM, MIN_NGRAM = 4, 1

    def __init__(self, context: DraftContext):
        self.device = context.pair.device
        self.sizes = range(self.MAX_NGRAM, self.MIN_NGRAM - 1, -1)
        self.text: list[int] = []
        self.followers: dict[tuple[int, ...], list[int]] = {}

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return {"max_ngram": cls.MAX_NGRAM, "min_ngram": cls.MIN_NGRAM}

    @classmethod
    def branches(cls, pair: ModelPair, params: DraftParams) -> int:
        """Always 1: it has one continuation to offer."""
        return 1

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self._read(prompt)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        self._read(committed[len(self.text) :])
        return Draft.copied(self._continuation(budget), self.device)

    def _read(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the text; indexes an n-gram once something follows it."""
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
                # Places ascend, and the earlier one is, the more text follows it.
                full = bisect.bisect_right(places, len(self.text) - budget)
                start = places[max(full - 1, 0)]
                return self.text[start : start + budget]
        return []
