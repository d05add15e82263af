"""Drafting with trained parts that read the target's hidden states: each says where its rows come from, one drafter
makes drafts of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.ahead import DraftAhead, HeadAhead
from specviz.drafters.base import DraftContext, Drafter
from specviz.drafters.draft_model import ParallelDraftModel
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair
from specviz.parts.head_passes import StaticHead
from specviz.parts.reading import HostLevel, Rows, TrainedPart
from specviz.parts.servers import Servers
from specviz.passes.kernels.chains import spread
from specviz.passes.kernels.rounds import SelfReliant
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.readers import StaticModel
from specviz.passes.static_passes import WIDEST
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict


class HeadDrafter(Stepwise):
    """Drafts from the target's hidden states with the pair's trained part of the same name.

    After each round the rows of draft tokens are dropped, and accepted tokens are read again, with the hidden states
    that the target has computed for them.
    """

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.part: TrainedPart = context.pair.parts[self.name]
        self.reading = self.part.for_run(context.target, context.passes)
        self.reading.foresees = bool(self.confidence)
        self.reading.gains_width = self.vocab_size if self.by_kernels and self.choice is not None else None
        self.most_levels = self.part.most_depths
        self.in_one_call = self.drafts_in_one_call(self.reading)
        self.feature_layers = self.part.feature_layers
        if (reachable := self.part.reachable) is not None:
            self.reachable = reachable.to(context.target.device)
        self.unread_features: list[Tensor] = []  # the target's, [n, width] each, that the part has yet to read

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        if cls.name not in pair.parts:
            raise pair.missing_part(cls.name)

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        """And how the part is read."""
        part = pair.parts[cls.name]
        read = {
            key: value if isinstance(value, (str, int)) else str(value).strip("[]{}")
            for key, value in part.facts().items()
        }
        return super().settings(pair, params) | read

    @classmethod
    def most_depths(cls, pair: ModelPair) -> float:
        return pair.parts[cls.name].most_depths if cls.name in pair.parts else super().most_depths(pair)

    def source(self, depth: int) -> str:
        return self.part.source(depth)

    @property
    def forecast(self) -> Tensor | None:
        return self.reading.forecast

    def spread(self, rows: Tensor, choice: Choice, uniforms: Tensor) -> RawDraft:
        if self.reading.gain is None:
            return super().spread(rows, choice, uniforms)
        with self.reading.span():  # most of it is the part's products
            return spread(rows, choice, uniforms, self.reading.gain)

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.unread_features = [] if features is None else [features]

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        choice = self.choice if self.in_one_call else None
        if choice is not None and self.reading.unread(committed) <= WIDEST and self._begin(committed):
            return self.as_draft(self.reading.draft(budget, choice, uniforms), uniforms)
        return super().propose(committed, budget, uniforms)

    def self_reliant(self) -> SelfReliant | None:
        reader, part = self.reading.reader, self.reading.part
        if not isinstance(reader, StaticModel) or not isinstance(static := reader.passes.static, StaticHead):
            return None
        states = torch.cat(self.unread_features) if self.unread_features else None
        alone = SelfReliant(reader, self.most_levels, is_head=True, states=states)
        if type(self) in (Parallel, Medusa) and part.one_pass is not None:
            fits = self.by_kernels and self.choice is not None and static.vocab_size == self.vocab_size
            return replace(alone, one_pass=part.one_pass) if fits and reader.passes.opened is not None else None
        if type(self) not in (Eagle, Mtp) or not self.in_one_call or not part.reads_text:
            return None
        return None if part.fuses and static.fusion is None else replace(alone, fusion=static.fusion)

    def rows_by_level(self, committed: Sequence[int], depth: int) -> Rows[HostLevel] | None:
        return self.reading.part.rows_by_level(self.reading, depth) if self._begin(committed) else None

    def _begin(self, committed: Sequence[int]) -> bool:
        """Hands the part what it has yet to read; False while the text is too short to draft from."""
        if not self.unread_features or len(committed) < self.reading.shortest:
            return False
        # Only now: to join them after every plain step would copy all of them each time.
        features = self.unread_features
        self.reading.begin(committed, features[0] if len(features) == 1 else torch.cat(features))
        self.unread_features = []
        return True

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.reading.go_back()
        self.observe_plain_step(committed, verdict, features)

    def observe_plain_step(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        assert features is not None, "the target leaves those of `feature_layers`"
        self.unread_features.append(features)

    def ahead(self, deepest: int) -> DraftAhead | None:
        reader, part = self.reading.recorded, self.reading.part
        if reader is None or not self.grows_on(reader):
            return None
        return HeadAhead(
            **self._ahead_arguments(reader, deepest),
            unread=deepest + 1 if part.reads_text else 1,
            deepest=self.most_levels,
            shares=not part.reads_text,
            part=part,
            model=self.reading.reader.model,
            fuse=self.reading.fuse,
        )

    def enter(self, committed: Sequence[int]) -> tuple[int, Tensor | None]:
        features, behind = torch.cat(self.unread_features), self.reading.unread(committed) - 1
        if behind > 0:
            self.reading.begin(committed[:-1], features[:behind])
            next(self.reading.part.rows_by_level(self.reading, 1))
            self.reading.go_back()
        self.unread_features = [features[-1:]]
        return len(committed) - 2, features[-1:]

    def leave(self, committed: int, read: int, features: Tensor | None) -> None:
        assert features is not None
        self.reading.go_on(read)
        self.unread_features = [features]


class Eagle(HeadDrafter):
    """Continues the target's hidden states, not just its text, which already point at the next token.

    EAGLE, Li et al., arXiv 2401.15077; a tree of its most confident branches, EAGLE-2, arXiv 2406.16858; features of
    several layers and the head's own state fed back, EAGLE-3, arXiv 2503.01840.
    """

    name: ClassVar[str] = "eagle"
    measured_as: ClassVar[frozenset[str]] = frozenset({"block", "tree"})


class Mtp(HeadDrafter):
    """Modules that are trained with the target to predict further tokens, and shipped with it, or afterwards.

    DeepSeek-V3, arXiv 2412.19437, sec. 2.2, eq. 21 to 23. With one alone that is EAGLE's loop.
    """

    name: ClassVar[str] = "mtp"
    measured_as: ClassVar[frozenset[str]] = frozenset({"block", "tree"})
    servers: ClassVar[Servers] = Servers("mtp", "NEXTN", "draft-mtp", sglang_draws=True)


class Parallel(HeadDrafter):
    """Fills in masks after the text, all depths in one pass from the target's hidden states.

    P-EAGLE, arXiv 2602.01469; in blocks of masks that see each other, DFlash, arXiv 2602.06036, and corrected from left
    to right, DSpark, arXiv 2607.05147, Domino, arXiv 2605.29707, DFlash2. A deeper draft takes hardly more time, but
    later tokens are accepted less often: uncorrected, a row allows for all that the tokens before its own could be.
    """

    name: ClassVar[str] = "parallel"
    at_once: ClassVar[bool] = True
    measured_as: ClassVar[frozenset[str]] = frozenset({"tree"})

    @classmethod
    def suited(cls, pair: ModelPair) -> type[Drafter]:
        return ParallelDraftModel if cls.name not in pair.parts and ParallelDraftModel.suits(pair) else cls


class Medusa(HeadDrafter):
    """Head k guesses the k-th token ahead from the hidden state with which the target wrote the last one.

    Cai et al. 2024, arXiv 2401.10774. The heads do not see each other's guesses: the whole draft costs one small pass,
    and its candidates form a tree.
    """

    name: ClassVar[str] = "medusa"
    at_once: ClassVar[bool] = True
    default_branches: ClassVar[int] = 4
    measured_as: ClassVar[frozenset[str]] = frozenset({"tree"})

    @classmethod
    def suited(cls, pair: ModelPair) -> type[Drafter]:
        part = pair.parts.get(cls.name)
        return cls if part is None or part.at_once else Speculator


class Speculator(Medusa):
    """Head k reads the state of head k − 1, the target's for the first, and the token that it led to.

    MLP speculators, Wertheimer et al. 2024, arXiv 2404.19124.
    """

    at_once: ClassVar[bool] = False
    measured_as: ClassVar[frozenset[str]] = frozenset({"block", "tree"})
