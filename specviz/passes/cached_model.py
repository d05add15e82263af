"""A causal model with a key-value cache that can be rewound.

One rule keeps it right: the cache never holds more than the committed tokens less one, and every forward pass feeds
whatever is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specviz.passes.cuda_graphs import GraphedPasses
from specviz.passes.devices import Stopwatch, home_of
from specviz.passes.fast_passes import FastPasses
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.states import states_of
from specviz.passes.static_passes import additive_mask, hides_far_places
from specviz.records.errors import SpecvizError
from specviz.rules.draft import tree_shape
from specviz.rules.transfer import to_device


def has_sliding_windows(model: PreTrainedModel) -> bool:
    """True if some layer attends to a limited window only."""
    return any(DynamicCache(config=model.config).is_sliding) or hides_far_places(model)


class CachedModel:
    """`model` reading one text, with the keys and values of its first `length` tokens in the cache.

    Works for every cache that transformers can crop: full attention, sliding windows, mixtures of both. Forward passes
    count as spans of `stopwatch`.
    """

    def __init__(self, model: PreTrainedModel, stopwatch: Stopwatch, feature_layers: tuple[int, ...] = ()):
        self.model = model
        self.device = home_of(model)
        self.stopwatch = stopwatch
        self.feature_layers = feature_layers  # hidden states each pass leaves in `features`: indices of transformers'
        self.features: Tensor | None = None  # [tokens of the last pass, layers · d], side by side
        self.reads_chains_only = has_sliding_windows(model)
        self.length = 0  # tokens held
        self.read_again = 0  # tokens of the last target pass that an earlier one had read
        self._empty()

    def _empty(self) -> None:
        self.cache = DynamicCache(config=self.model.config)
        # Otherwise sliding windows forget the keys and values that a rewind has to bring back.
        self.cache.activate_past_recording()

    def sharing_first_layers(self, model: PreTrainedModel, layers: int, passes: FastPasses | None) -> CachedModel:
        """The same text, read by a model of this one's first `layers` layers, which share its cache.

        passes: that model's fast passes, used only if this one has fast passes too. After reading on with the twin,
        rewind it to this one's length before this one reads on.
        """
        twin = type(self)(model, self.stopwatch)
        twin.cache.layers = self.cache.layers[:layers]
        return twin

    def unread(self, committed: Sequence[int]) -> Tensor:
        """The committed tokens not yet in the cache, [n] int64 on the model's device."""
        return to_device(committed[self.length :], self.device)

    def forward(
        self,
        token_ids: Tensor,
        rows_wanted: int,
        visible: Tensor | None = None,
        positions: Tensor | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """One pass over the next tokens; returns logits [rows_wanted, vocab] in the model's dtype or in float32.

        token_ids: [n] int64, following the `length` cached tokens. rows_wanted: how many rows, the last.
        visible: [n, length + n] bool, what each token attends to, and positions: [n] int64; by default a chain.
        inputs: [n, width], what a trained part reads with each token.
        """
        with self.stopwatch.span():
            logits = self._read(token_ids, rows_wanted, visible, positions, inputs)
        self.length += token_ids.shape[0]
        # Some architectures return every row, no matter how many are asked for.
        return logits if logits.shape[0] == rows_wanted else logits[-rows_wanted:]

    def _read(
        self,
        token_ids: Tensor,
        rows_wanted: int,
        visible: Tensor | None,
        positions: Tensor | None,
        inputs: Tensor | None,
    ) -> Tensor:
        """The pass itself: appends keys and values, leaves `features`, returns logits [at least rows_wanted, vocab]."""
        further = {} if inputs is None else {"features": inputs[None]}
        if positions is not None:
            further["position_ids"] = positions[None]
        if visible is not None:
            further["attention_mask"] = additive_mask(visible, self.model.dtype)
        output = self.model(
            input_ids=token_ids.unsqueeze(0),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=rows_wanted,
            output_hidden_states=bool(self.feature_layers),
            **further,
        )
        if self.feature_layers:
            states = [output.hidden_states[layer][0].to(self.device) for layer in self.feature_layers]
            self.features = states[0] if len(states) == 1 else torch.cat(states, -1)
        return output.logits[0].to(self.device)

    def verify(self, committed: Sequence[int], draft_tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        """The target pass: one forward over what is unread and all draft tokens; logits [n + 1, vocab].

        draft_tokens: [n] int64, each continuing draft token `parents[i]` or, at −1, the committed text. A tree is
        read in one pass too: each token attends to the committed text and its own branch, at its position in it.
        """
        unread, n = self.unread(committed), len(parents)
        if not parents:
            return self.forward(unread, rows_wanted=1)
        token_ids = torch.cat([unread, draft_tokens])
        if parents == tuple(range(-1, n - 1)):
            return self.forward(token_ids, rows_wanted=n + 1)
        self._refuse_trees()
        visible, positions = tree_view(parents, read=self.length, unread=len(unread))
        return self.forward(token_ids, n + 1, to_device(visible, self.device), to_device(positions, self.device))

    def extend(self, tokens: Tensor, parents: tuple[int, ...], inputs: Tensor | None = None) -> Tensor:
        """One pass over the next level of a draft in the making; logits [k, vocab].

        tokens: [k] int64, the last k of a draft with these `parents`; the others have been read already. inputs: as in
        `forward`.
        """
        n, k = len(parents), tokens.shape[0]
        if parents == tuple(range(-1, n - 1)):
            return self.forward(tokens, rows_wanted=k, inputs=inputs)
        self._refuse_trees()
        branch = tree_shape(parents, torch.device("cpu")).ancestors[n - k :]
        text = self.length - (n - k)
        visible = torch.cat([torch.ones(k, text, dtype=torch.bool), branch], -1)
        positions = text + branch.sum(-1) - 1
        return self.forward(tokens, k, to_device(visible, self.device), to_device(positions, self.device), inputs)

    def _refuse_trees(self) -> None:
        if self.reads_chains_only:
            raise SpecvizError("This model reads chains only: set branches to 1.", "branches")

    def draft_width(self, branches: int) -> int | None:
        """Of the logits from which it drafts that many tokens a level in one call (`draft`); None if it does not."""
        return None

    def draft(
        self, unread: Tensor, levels: int, choice: Choice, uniforms: Tensor, inputs: Tensor | None = None
    ) -> RawDraft:
        """Reads what is unread, at most WIDEST tokens, and drafts after it; see `DraftsInOneCall.draft`.

        Only where there is a `draft_width`.
        """
        raise NotImplementedError("This model drafts token by token.")

    @property
    def graphs(self) -> GraphedPasses | None:
        """Its passes, if they work on the buffers that hold this text: then whole rounds can be recorded over them."""
        return None

    def rewind(self, length: int) -> None:
        """Forgets all tokens after the first `length`.

        Needed after every round, even with nothing to forget: a sliding-window layer holds more than its window until
        it hears that the round is over.
        """
        if length > self.length:
            raise ValueError(f"A cache of {self.length} tokens cannot be rewound to {length}.")
        self._forget(self.length - length)
        self.length = length

    def _forget(self, count: int) -> None:
        if self.length:
            self.cache.crop(-count)

    def rewind_to_path(self, committed: int, path: Sequence[int]) -> None:
        """After a target pass over `committed` tokens and a draft: holds those and the draft tokens on `path`."""
        if list(path) != list(range(len(path))):
            self._move(committed, to_device(path, self.device) + committed)
        self.rewind(committed + len(path))

    def _move(self, start: int, origins: Tensor) -> None:
        """Moves the keys and values at the indices `origins` [k] to the places from `start` on."""
        end = start + len(origins)
        for layer in self.cache.layers:
            # Layers may lie on different devices.
            origins = origins.to(layer.keys.device)
            # Sparse attention has further keys, by which it chooses what to attend to.
            for part in (layer.keys, layer.values, getattr(layer, "indexer_keys", None)):
                if part is not None:
                    # Indexing copies, so the ranges may overlap.
                    part[..., start:end, :] = part[..., origins, :]

    def prefill(self, prompt: Sequence[int]) -> None:
        """Reads a prompt except for its last token, which the first round reads."""
        if len(prompt) > 1:
            self.forward(self.unread(prompt[:-1]), rows_wanted=1)
            self.rewind(self.length)

    def kv(self) -> list[Tensor]:
        """Keys and values of each layer in turn, [1, heads, tokens held, head size]."""
        layers = [layer for layer in self.cache.layers if hasattr(layer, "keys")]  # all but those with a state alone
        return [part for layer in layers for part in (layer.keys, layer.values)]

    def states(self) -> list[Tensor]:
        """Windows [1, channels, size] and running states [1, ...], layer by layer."""
        return states_of(self.cache)


def tree_view(parents: tuple[int, ...], read: int, unread: int) -> tuple[Tensor, Tensor]:
    """The places that each of `unread` + n tokens attends to, [unread + n, read + unread + n] bool; their positions."""
    n, text = len(parents), read + unread
    branch = tree_shape(parents, torch.device("cpu")).ancestors
    visible = torch.ones(unread + n, text + n, dtype=torch.bool).tril(read)
    visible[unread:, text:] = branch
    return visible, torch.cat([torch.arange(read, text), text - 1 + branch.sum(-1)])
