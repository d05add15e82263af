"""Drafts made in one call of C++ (`specviz.passes.kernels.chains`): what is asked for, and what comes back."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor


class Choice(NamedTuple):
    """How rows of logits become draft tokens, where nothing but a temperature shapes them; see `drafters.choosers`."""

    branches: int  # tokens of each level; 1 makes a chain
    temperature: float  # 0 takes the likeliest, else they are drawn
    as_paths: bool = False  # each branch is drawn without regard to the others


class RawDraft(NamedTuple):
    """A draft of n tokens before it becomes a `Draft`."""

    tokens: Tensor  # [n] int64
    parents: tuple[int, ...]  # [n]
    logits: Tensor  # [m, vocab] float32, after the text and after each token that is continued
    probs: Tensor | None  # [n, vocab] float32, drawn from; None for the likeliest

    @property
    def read(self) -> int:
        """How many of them were read: all but the last level."""
        start = 0
        for token, parent in enumerate(self.parents):
            if parent >= start:  # only the level before is continued
                start = token
        return start


#: ``draft(unread, length, kv, levels, choice, uniforms, features)``, see `DraftsInOneCall.draft`.
DraftFunction = Callable[[Tensor, int, Sequence[Tensor], int, Choice, Tensor, Tensor | None], RawDraft]
