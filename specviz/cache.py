"""A causal model with a key-value cache that can be rewound; the one place that knows transformers' cache classes.

One rule keeps it right: the cache never holds more than the committed tokens less one, and every forward pass feeds
whatever it does not hold yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specviz.clock import Stopwatch
from specviz.errors import SpecvizError
from specviz.verify import shape_of


class CachedModel:
    """`model` reading one sequence, with rows for its first `length` tokens in the cache.

    Works for every cache that transformers can crop: full attention, sliding windows, mixtures of both.
    Forward passes count as spans of `stopwatch`.
    """

    def __init__(self, model: PreTrainedModel, stopwatch: Stopwatch):
        self.model = model
        self.device = model.device
        self.stopwatch = stopwatch
        self.cache = DynamicCache(config=model.config)
        # Sliding windows would otherwise forget the rows that a rewind has to bring back.
        self.cache.activate_past_recording()
        self.length = 0

    def unread(self, committed: Sequence[int]) -> Tensor:
        """The committed tokens that are not in the cache yet, [n] int64 on the model's device."""
        return torch.tensor(committed[self.length :], dtype=torch.long, device=self.device)

    def forward(self, token_ids: Tensor, keep: int, **attention: Tensor) -> Tensor:
        """One pass over the next tokens of the sequence.

        token_ids: [n] int64, those that follow the `length` cached ones. Returns logits [keep, vocab] of the last
        `keep` of them, in the model's dtype. attention: mask and positions where they are not plainly causal.
        """
        with self.stopwatch.span():
            output = self.model(
                input_ids=token_ids.unsqueeze(0),
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=keep,
                **attention,
            )
        self.length += token_ids.shape[0]
        logits = output.logits[0]
        # Some architectures ignore logits_to_keep and return every row.
        return logits if logits.shape[0] == keep else logits[-keep:]

    def verify(self, committed: Sequence[int], draft_tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """The target pass: one forward over what is unread and all draft tokens; logits [n + 1, vocab].

        draft_tokens: [n] int64, each continuing draft token `parents[i]` or, at −1, the committed text. A tree is
        read in one pass too: each token sees the committed text and its own branch, at the position it would have.
        """
        unread = self.unread(committed)
        token_ids = torch.cat([unread, draft_tokens])
        n = len(parents)
        if parents == tuple(range(-1, n - 1)):
            return self.forward(token_ids, keep=n + 1)
        if any(self.cache.is_sliding):
            raise SpecvizError("A model with sliding-window attention verifies chains only, not trees.", "drafter")
        visible, depth = _tree_view(parents, read=self.length, unread=len(unread))
        device = token_ids.device
        return self.forward(
            token_ids,
            keep=n + 1,
            attention_mask=visible.to(device)[None, None],
            position_ids=depth.to(device)[None],
        )

    def rewind(self, length: int) -> None:
        """Forget all rows after the first `length`.

        Due after every round, even when nothing is to be forgotten: a sliding-window layer holds more than its
        window until it is told that the round is over.
        """
        if length > self.length:
            raise ValueError(f"A cache of {self.length} rows cannot be rewound to {length}.")
        if self.length:
            self.cache.crop(length - self.length)
        self.length = length

    def keep(self, committed: int, path: Sequence[int]) -> None:
        """After a target pass over `committed` tokens and a draft: keep those and the draft tokens on `path`."""
        if list(path) != list(range(len(path))):
            rows = torch.tensor([*range(committed), *(committed + index for index in path)], device=self.device)
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[:, :, rows], layer.values[:, :, rows]
            self.length = len(rows)
        self.rewind(committed + len(path))

    def prefill(self, prompt: Sequence[int]) -> None:
        """Reads a prompt up to its last token, which belongs to the first round."""
        if len(prompt) > 1:
            self.forward(self.unread(prompt[:-1]), keep=1)
            self.rewind(self.length)


def _tree_view(parents: tuple[int, ...], read: int, unread: int) -> tuple[Tensor, Tensor]:
    """What each of `unread` + n tokens may attend to, [unread + n, read + unread + n] bool, and their positions."""
    n = len(parents)
    visible = torch.ones(unread + n, read + unread + n, dtype=torch.bool)
    visible[:, read:] = torch.ones(unread + n, unread + n, dtype=torch.bool).tril()
    branch = shape_of(parents, torch.device("cpu")).ancestors
    visible[unread:, read + unread :] = branch
    text = torch.arange(read, read + unread)
    return visible, torch.cat([text, read + unread - 1 + branch.sum(-1)])
