"""Drafting all depths in one pass; masks after the text."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specviz.drafters.ahead import DraftAhead, MasksAhead
from specviz.drafters.base import DraftContext, Servers
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.heads import Headed
from specviz.drafters.stepwise import Stepwise
from specviz.models.pair import ModelPair
from specviz.parts.head_passes import HeadModel
from specviz.passes.cached_model import reader
from specviz.passes.kernels.chains import spread
from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict, tree_shape
from specviz.rules.sampling import fit_width
from specviz.rules.transfer import to_device


class AtOnce(Stepwise):
    """A drafter whose tokens do not see each other: one pass gives a row for each depth, which all branches share.

    A deeper draft takes hardly more time, but later tokens are kept less often: a row allows for everything that the
    tokens before its own could have been.
    """

    at_once: ClassVar[bool] = True
    measured_as: ClassVar[frozenset[str]] = frozenset({"tree"})
    step_share: ClassVar[float | None] = 1 / 2

    def __init__(self, context: DraftContext):
        super().__init__(context)
        self.most = self.most_depths(context.pair)
        self.in_one_call = False  # as `Stepwise` has it, a pass a token
        passes = context.passes.get("target")
        self.spreads = self.choice is not None and passes is not None and passes.by_kernels
        self.asked = 0  # depths of this round
        self.rows: Tensor | None = None  # of this round, one for each depth

    @classmethod
    @abstractmethod
    def most_depths(cls, pair: ModelPair) -> int:
        """How deep it drafts for this pair at most."""

    @abstractmethod
    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        """Logits [at least depths, any width] for what follows the text; None if there is nothing to go on yet."""

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        self.asked = min(budget, self.most)
        return super().propose(committed, self.asked, uniforms)

    def first_row(self, committed: Sequence[int]) -> Tensor | None:
        self.rows = self.all_rows(committed, self.asked)
        return None if self.rows is None else self.rows[:1]

    def _grown(self, row: Tensor, budget: int, uniforms: Tensor) -> Draft:
        if not self.spreads:
            return super()._grown(row, budget, uniforms)
        rows = fit_width(self.rows[:budget], self.vocab_size).float().contiguous()
        return self.as_draft(spread(rows, self.choice, uniforms), uniforms)

    def next_rows(self, tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        # The last token's branch is as long as the number of rows used.
        spent = int(tree_shape(parents, torch.device("cpu")).ancestors[-1].sum())
        return self.rows[spent].expand(len(tokens), -1)


#: The most masks for which published PARD models are run, less one: nothing in their folders says how many.
_PARD_DEPTHS = 32


class Masked(AtOnce):
    """Masks after the text are filled in by one pass, which also reads the tokens that the last round kept."""

    name: ClassVar[str] = "parallel"
    masks_alone: bool = False  # whether masks make the first token too, and not the text's last row

    def source(self, depth: int) -> str:
        mask = depth + self.masks_alone
        return f"mask {mask}" if mask else "row"


class Parallel(Masked, Headed):
    """Drafts from the target's hidden states of the text (P-EAGLE, arXiv 2602.01469)."""

    def __init__(self, context: DraftContext):
        super().__init__(context)
        model = HeadModel(self.head, self.target)
        fast = context.passes.get(self.name)
        self.reader = reader(model, self.stopwatch, fast)
        self.fuse = self.head.fuse if fast is None else fast.static.fuse

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return super().settings(pair, params) | {"depths": cls.most_depths(pair)}

    @classmethod
    def most_depths(cls, pair: ModelPair) -> int:
        return pair.parts[cls.name].depths

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor | None:
        if self.features is None:
            return None
        tokens = to_device(committed[self.reader.length + 1 :], self.features.device)
        return self.head.read_masks(self.reader, self.features, tokens, depths, self.fuse)

    def ahead(self, deepest: int) -> DraftAhead | None:
        if not self.grows_on(self.reader):
            return None
        own = self._in_common(self.reader, deepest) | {"unread": deepest + 1, "fuse": self.fuse}
        return MasksAhead(**own, deepest=self.most, mask=(self.head.mask_id, self.head.mask_hidden[0]))


class ParallelDraftModel(Masked, DraftModel):
    """Drafts with a draft model that was adapted to masks: the same token again and again (PARD, arXiv 2504.18583).

    So do those that can also read their target's hidden states, which they are trained to do without (PARD-2, arXiv
    2605.08632).
    """

    servers: ClassVar[Servers] = Servers("draft_model", model="DRAFT_MODEL", in_parallel=True)

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
        mask, tokens = pair.draft.config.pard_token, len(pair.draft.get_input_embeddings().weight)
        if not isinstance(mask, int) or not 0 <= mask < tokens:
            raise SpecvizError(
                "The draft model's mask, pard_token {mask}, is none of its {tokens} tokens: correct its config.json.",
                "drafter",
                mask=quoted(mask),
                tokens=tokens,
            )

    @classmethod
    def most_depths(cls, pair: ModelPair) -> int:
        return _PARD_DEPTHS

    def all_rows(self, committed: Sequence[int], depths: int) -> Tensor:
        unread = self.unread(committed)
        masks = unread.new_full((depths - 1,), self.model.model.config.pard_token)
        return self.model.forward(torch.cat([unread, masks]), keep=depths)

    def observe(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.model.rewind(committed)
