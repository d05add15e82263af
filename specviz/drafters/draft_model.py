"""Drafting with a second, smaller model, with the target's vocabulary or another."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from specviz.drafters.ahead import DraftAhead, MasksAhead
from specviz.drafters.base import DraftContext, Drafter
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair, logit_width
from specviz.models.vocabularies import Reader
from specviz.parts.reading import HostLevel, Rows
from specviz.parts.servers import Servers
from specviz.passes.kernels.rounds import SelfReliant
from specviz.passes.positions import position_limit
from specviz.passes.readers import StaticModel, new_cached_model
from specviz.passes.reading_checks import why_no_trees
from specviz.passes.roles import DRAFT
from specviz.passes.static_passes import WIDEST
from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict
from specviz.rules.sampling import in_order


class DraftModel(Stepwise):
    """Draws draft tokens from the draft model, one by one.

    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 (M_q); Chen et al. 2023, arXiv 2302.01318. With branches, a tree of
    sampled tokens as in SpecInfer (Miao et al., arXiv 2305.09781). Adaptive length in the spirit of DISCO (Mamou
    et al., arXiv 2405.04304), with the draft's own probability instead of a trained classifier. Where the draft's head
    knows the frequent tokens only (`specviz.models.loading.keep_frequent`), it never proposes the others. Once its own
    context is full it proposes nothing.
    """

    name: ClassVar[str] = "draft_model"
    measured_as: ClassVar[frozenset[str]] = frozenset({"block", "tree"})
    servers: ClassVar[Servers] = Servers("draft_model", "STANDALONE", "draft-simple", "DRAFT_MODEL")
    step_share: ClassVar[float | None] = None

    def __init__(self, context: DraftContext):
        super().__init__(context)
        draft = context.pair.draft
        assert draft is not None, "`check` asks for one"
        self.model = new_cached_model(draft, context.target.stopwatch, context.passes.get(DRAFT))
        self.id_count = draft.get_input_embeddings().num_embeddings
        self.limit = position_limit(draft) or math.inf
        self.columns = context.pair.draft_columns
        if self.columns is not None:
            known = (self.columns < logit_width(draft))[: self.vocab_size]
            self.reachable = functional.pad(known, (0, self.vocab_size - len(known)))
        self.covers_target = self.columns is None and self.id_count >= self.vocab_size == logit_width(draft)
        self.in_one_call = self.covers_target and self.drafts_in_one_call(self.model)

    @classmethod
    def suited(cls, pair: ModelPair) -> type[Drafter]:
        return cls if pair.translation is None else TranslatedDraftModel

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        if pair.draft is None or pair.draft_name is None:
            raise SpecvizError(
                "This pair has no draft model: name one when loading, or draft with prompt_lookup.", "drafter"
            )
        if cls.branches(pair, params) > 1 and (reason := why_no_trees(pair.draft, pair.draft_name)):
            raise reason

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        if self.room(prompt) > 0:
            self.model.prefill(self.readable(prompt))

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        budget = int(min(budget, self.room(committed)))
        if budget < 1:
            return Draft.copied((), uniforms.device)
        choice = self.choice if self.in_one_call else None
        if choice is not None and (unread := self.unread(committed)).shape[0] <= WIDEST:
            return self.as_draft(self.model.draft(unread, budget, choice, uniforms), uniforms)
        return super().propose(committed, budget, uniforms)

    def self_reliant(self) -> SelfReliant | None:
        if type(self) is not DraftModel or not self.in_one_call or not isinstance(self.model, StaticModel):
            return None
        return SelfReliant(self.model, limit=self.limit)

    def room(self, committed: Sequence[int]) -> float:
        """How many tokens can be drafted before the draft runs out of positions; the last one is never fed."""
        return self.limit + 1 - len(committed)

    def rows_by_level(self, committed: Sequence[int], depth: int) -> Rows[HostLevel] | None:
        return self._rows_by_level(self.unread(committed))

    def _rows_by_level(self, unread: Tensor) -> Rows[HostLevel]:
        rows = self.model.forward(unread, rows_wanted=1)
        while True:
            level = yield self._full_rows(rows)
            rows = self.model.extend(self._readable(level.tokens), level.parents)

    def readable(self, ids: Sequence[int]) -> list[int]:
        """The ids as the draft model reads them. Some only the target has: the draft reads another id in their place.
        That costs a guess, never exactness."""
        return [min(token_id, self.id_count - 1) for token_id in ids]

    def unread(self, committed: Sequence[int]) -> Tensor:
        """The committed tokens that the draft model has not read yet, as ids that it knows, [n] int64."""
        return self.model.unread(committed).clamp_max(self.id_count - 1)

    def _readable(self, tokens: Tensor) -> Tensor:
        """Draft tokens as the draft model reads them."""
        return tokens

    def _full_rows(self, rows: Tensor) -> Tensor:
        """Rows of the draft's head over its whole vocabulary."""
        return rows if self.columns is None else in_order(rows, self.columns)

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        # The last level was never fed, so after full acceptance there is nothing to drop.
        fed = self.model.length - committed
        if fed < 0:  # its context is full
            return
        self.model.rewind_to_path(committed, [index for index in verdict.path if index < fed])

    def ahead(self, deepest: int) -> DraftAhead | None:
        if not (self.covers_target and self.grows_on(self.model)):
            return None
        # After a draft that was accepted whole its last token is unread, and the one after it.
        return DraftAhead(**self._ahead_arguments(self.model, deepest), unread=2, limit=self.limit)

    def enter(self, committed: Sequence[int]) -> tuple[int, Tensor | None]:
        if self.model.length < len(committed) - 2:
            self.model.prefill(committed)
        return self.model.length, None

    def leave(self, committed: int, read: int, features: Tensor | None) -> None:
        self.model.length = read


class TranslatedDraftModel(DraftModel):
    """Draws draft tokens from the draft model's distribution over the tokens that it shares with the target.

    Token-level intersection: Timor et al. 2025, arXiv 2502.05202, Alg. 4. The draft's logits are reordered to the
    target's ids, with −∞ for tokens not shared; from there on it is a draft like any other. Tokens are drawn from the
    warped softmax of these logits, which is their q, so the output follows the target. `logits` are these too: q_raw
    is the draft's softmax over the shared tokens.

    The draft reads the text in its own tokens (see `Reader`). How well they fit affects how much is accepted, never
    the output's distribution. It drafts nothing while the last token has left no trace there, or once its own context
    is full.
    """

    words: ClassVar[str] = "translated"

    def __init__(self, context: DraftContext):
        super().__init__(context)
        translation = context.pair.translation
        assert translation is not None, "`drafter_class` looks for one"
        self.reader = Reader(translation, ())
        width = logit_width(self.model.model)
        draft_ids, target_ids = torch.tensor(translation.pairs, device=self.model.device).T
        both = (draft_ids < min(width, self.id_count)) & (target_ids < self.vocab_size)
        # Target id -> draft id; one past the draft's logits for tokens not shared.
        self.draft_of = torch.full((self.vocab_size,), width, device=self.model.device)
        self.draft_of[target_ids[both]] = draft_ids[both]
        self.reachable = self.draft_of < width
        # That would take the draft's ids for the target's, where there are as many.
        self.covers_target = self.in_one_call = False

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.reader = Reader(self.reader.translation, prompt)
        if self.room(prompt) > 0:
            self.model.prefill(self.readable(self.reader.ids[: self.reader.settled]))

    def room(self, committed: Sequence[int]) -> float:
        self.reader.follow(committed)
        return super().room(self.reader.ids)

    def rows_by_level(self, committed: Sequence[int], depth: int) -> Rows[HostLevel] | None:
        unread = self.unread(self.reader.ids)
        return self._rows_by_level(unread) if len(unread) else None

    def _readable(self, tokens: Tensor) -> Tensor:
        # Only what was drawn from no numbers is not shared, and will be rejected as such.
        return self.draft_of[tokens].clamp_max(self.id_count - 1)

    def _full_rows(self, rows: Tensor) -> Tensor:
        return in_order(rows, self.draft_of)

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        read, settled = len(self.reader.ids), self.reader.settled
        fed = self.model.length - read
        if read > settled:
            # Tokens of an unfinished character will be read again, and so must everything drafted after them.
            self.model.rewind(min(settled, self.model.length))
        else:
            self.model.rewind_to_path(min(read, self.model.length), [index for index in verdict.path if index < fed])


#: The most masks for which published PARD models are run, less one: nothing in their folders says how many.
_PARD_DEPTHS = 32


class ParallelDraftModel(DraftModel):
    """Drafts with a draft model that was adapted to masks: the same token again and again (PARD, arXiv 2504.18583).

    All depths in one pass, so tokens do not see each other: a deeper draft takes hardly more time, but later tokens are
    accepted less often. So do those that can also read their target's hidden states (PARD-2, arXiv 2605.08632): they
    are trained to do without.
    """

    name: ClassVar[str] = "parallel"
    at_once: ClassVar[bool] = True
    measured_as: ClassVar[frozenset[str]] = frozenset({"tree"})
    servers: ClassVar[Servers] = Servers("draft_model", model="DRAFT_MODEL", in_parallel=True)
    step_share: ClassVar[float | None] = 1 / 2
    most_levels: float = _PARD_DEPTHS

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.in_one_call = False  # a pass a token

    @classmethod
    def suits(cls, pair: ModelPair) -> bool:
        """True if the pair's draft model was adapted like that and shares the target's tokens."""
        if pair.draft is None or pair.translation is not None:
            return False
        settings = pair.draft.config
        return getattr(settings, "spd_type", None) in ("pard", "pard2") and hasattr(settings, "pard_token")

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        """It reads chains only, so any draft model will do whose mask is one of its tokens."""
        assert pair.draft is not None, "`suits` looks for one"
        mask, tokens = pair.draft.config.pard_token, len(pair.draft.get_input_embeddings().weight)
        if not isinstance(mask, int) or not 0 <= mask < tokens:
            raise SpecvizError(
                "The draft model's mask, pard_token {mask}, is not one of its {tokens} tokens: correct its "
                "config.json.",
                "drafter",
                mask=quoted(mask),
                tokens=tokens,
            )

    def source(self, depth: int) -> str:
        return f"mask {depth}" if depth else "row"

    def rows_by_level(self, committed: Sequence[int], depth: int) -> Rows[HostLevel]:
        unread = self.unread(committed)
        masks = unread.new_full((depth - 1,), self.model.model.config.pard_token)
        yield self.model.forward(torch.cat([unread, masks]), rows_wanted=depth)

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        if self.model.length >= committed:  # else its context is full
            self.model.rewind(committed)

    def ahead(self, deepest: int) -> DraftAhead | None:
        if not (self.covers_target and self.grows_on(self.model)):
            return None
        arguments = self._ahead_arguments(self.model, deepest) | {"limit": self.limit, "deepest": self.most_levels}
        return MasksAhead(**arguments, unread=deepest + 1, mask=self.model.model.config.pard_token)
