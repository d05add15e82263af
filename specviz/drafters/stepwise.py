"""Drafting step by step: a row of logits, a token from it, the next row; as a chain or a tree.

Draft models, early exits and trained parts share this; they differ in where the rows come from.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext, Drafter
from specviz.drafters.choosers import Paths
from specviz.drafters.growing import Growing
from specviz.models.pair import ModelPair
from specviz.parts.reading import HostLevel, Rows, RunReading
from specviz.passes.cached_model import CachedModel
from specviz.passes.kernels.chains import spread
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.roles import TARGET
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, chain
from specviz.rules.grammar import Ends
from specviz.rules.sampling import fit_width


class Stepwise(Drafter):
    """A drafter with a row of logits for every token that it may continue.

    In a tree, a level's most confident token decides whether drafting stops early (`DraftParams.confidence`).
    """

    parameters: ClassVar[frozenset[str]] = frozenset({"branches", "confidence"})
    narrows: ClassVar[bool] = True
    draws_paths: ClassVar[bool] = True

    most_levels: float = math.inf  # how deep it drafts

    def __init__(self, context: DraftContext):
        self.chooser = context.chooser
        self.vocab_size = context.pair.vocab_size
        self.width = context.branches
        self.confidence = context.params.confidence
        self.grammar = context.grammar
        passes = context.passes.get(TARGET)
        self.by_kernels = passes is not None and passes.by_kernels

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return {"branches": cls.branches(pair, params), "confidence": params.confidence}

    def narrow(self, branches: int) -> None:
        self.width = branches

    @abstractmethod
    def rows_by_level(self, committed: Sequence[int], depth: int) -> Rows[HostLevel] | None:
        """The rows of a draft after the committed text, level by level, at most `depth` ≥ 1 of them; None while the
        text is too short to draft from."""

    @property
    def forecast(self) -> Tensor | None:
        """[k] how likely the token of each of the last rows is to be accepted, where that is foreseen; drafting
        then stops before a level that is too unlikely, and not after an unsure one."""
        return None

    def spread(self, rows: Tensor, choice: Choice, uniforms: Tensor) -> RawDraft:
        """A whole draft from the rows of its levels, [levels, vocab]."""
        return spread(rows, choice, uniforms)

    def source(self, depth: int) -> str:
        """What proposes the tokens at this depth, counted from 0; empty if obvious."""
        return ""

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        budget = int(min(budget, self.most_levels))
        levels = self.rows_by_level(committed, budget)
        if levels is None:
            return Draft.copied((), uniforms.device)
        first = next(levels)
        if (too_low := self._too_unsure()) is not None:
            return replace(Draft.copied((), uniforms.device), confidence=too_low)
        if self.by_kernels and len(first) == budget and (choice := self.choice) is not None:
            rows = fit_width(first, self.vocab_size).float().contiguous()
            return self.as_draft(self.spread(rows, choice, uniforms), uniforms)
        grow = self._chain if self.width == 1 else self._tree
        return grow(first, levels, budget, uniforms, Ends(self.grammar, committed))

    def _too_unsure(self) -> float | None:
        """What is foreseen of the next level, if that is too unlikely to be drafted."""
        if self.forecast is None or not self.confidence:
            return None
        foreseen = self.forecast.max().item()
        return foreseen if foreseen < self.confidence else None

    def _chain(self, first: Tensor, levels: Rows[HostLevel], budget: int, uniforms: Tensor, ends: Ends) -> Draft:
        """Token by token; all stay on the device, and no step waits for the host (unless `confidence` is set, or under
        a grammar)."""
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        probs: list[Tensor] = []
        too_low, at_once = None, len(first) > 1
        for depth, u in enumerate(uniforms[:budget].unbind()):
            if depth and not at_once:
                row = levels.send(HostLevel(tokens[-1], chain(depth)))
                if (too_low := self._too_unsure()) is not None:
                    break
            else:
                row = first[depth : depth + 1]
            rows.append(ends.masked(fit_width(row, self.vocab_size).float()))
            token, drawn_from = self.chooser.choose(rows[-1], u)
            tokens.append(token)
            ends.grow([0], token)
            if drawn_from is not None:
                probs.append(drawn_from)
            if self.confidence and self.forecast is None and depth < budget - 1:
                confidence = rows[-1].softmax(-1).max().item() if drawn_from is None else drawn_from[0, token].item()
                if confidence < self.confidence:
                    too_low = confidence
                    break
        drawn = torch.cat(probs) if probs else None
        return self.as_draft(RawDraft(torch.cat(tokens), chain(len(tokens)), torch.cat(rows), drawn), uniforms, too_low)

    @property
    def choice(self) -> Choice | None:
        """How a draft's tokens are chosen in one call; None if they cannot be: drafts may end early, or a filter or a
        grammar applies."""
        if self.confidence or self.chooser.temperature is None or self.grammar is not None:
            return None
        return Choice(self.width, self.chooser.temperature, isinstance(self.chooser, Paths))

    def drafts_in_one_call(self, reader: CachedModel | RunReading) -> bool:
        """True if `reader` can make this drafter's drafts by itself."""
        return self.choice is not None and reader.draft_width(self.width) == self.vocab_size

    def grows_on(self, reader: CachedModel) -> bool:
        """True if a device can make this drafter's drafts from the passes of `reader`, without the host's choices.

        Filters may leave a row fewer tokens than a tree has branches, which only the host can deal with.
        """
        settled = not self.confidence and not isinstance(self.chooser, Paths)
        return settled and (self.width == 1 or self.chooser.temperature is not None) and reader.graphs is not None

    def _ahead_arguments(self, reader: CachedModel, deepest: int) -> dict[str, Any]:
        """What `DraftAhead` needs to know of every drafter that `grows_on` this reader."""
        growing = Growing(self.chooser.warper, self.width)
        sources = tuple(map(self.source, range(deepest))) if self.source(0) else ()
        return {"passes": reader.graphs, "growing": growing, "vocab_size": self.vocab_size, "sources": sources}

    def _tree(self, first: Tensor, levels: Rows[HostLevel], budget: int, uniforms: Tensor, ends: Ends) -> Draft:
        """Level by level, `branches` tokens each, where they are likeliest to be reached and accepted."""
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        probs: list[Tensor] = []
        parents: tuple[int, ...] = ()
        frontier, weights = [-1], [1.0]
        too_low, at_once = None, len(first) > 1
        for depth in range(budget):
            if depth and not at_once:
                row = levels.send(HostLevel(tokens[-1], parents, in_tree=True))
                if (too_low := self._too_unsure()) is not None:
                    break
            else:
                row = first[depth : depth + 1].expand(len(frontier), -1)
            row = ends.masked(fit_width(row, self.vocab_size).float())
            level = self.chooser.children(row, weights, self.width, uniforms[len(parents) :])
            tokens.append(level.tokens)
            ends.grow(level.places, level.tokens)
            rows.append(row if len(row) == 1 else row[list(dict.fromkeys(level.places))])
            if level.probs is not None:
                probs.append(level.probs)
            weights = [weights[place] * chance for place, chance in zip(level.places, level.chances)]
            start = len(parents)
            parents += tuple(frontier[place] for place in level.places)
            frontier = list(range(start, len(parents)))
            if self.forecast is None and depth < budget - 1 and max(level.confidences) < self.confidence:
                too_low = max(level.confidences)
                break
        drawn = torch.cat(probs) if probs else None
        return self.as_draft(RawDraft(torch.cat(tokens), parents, torch.cat(rows), drawn), uniforms, too_low)

    def as_draft(self, drafted: RawDraft, uniforms: Tensor, too_low: float | None = None) -> Draft:
        """What was drafted, for a rule. too_low: the confidence that ended drafting early."""
        tokens, parents, logits, probs = drafted
        warper = self.chooser.warper
        if warper is not None and not warper.changes_logits and parents == chain(len(parents)):
            logits = None  # `probs` are their softmax
        draws = None if probs is None else uniforms[: len(parents)]
        return Draft(tokens, parents, probs, logits, draws, self._sources(parents), too_low)

    def _sources(self, parents: tuple[int, ...]) -> tuple[str, ...]:
        if not self.source(0):
            return ()
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple([self.source(depth) for depth in depths])
