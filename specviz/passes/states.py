"""Running states: what layers keep of a text in place of its keys and values, and how it is put back.

A recurrent layer (Mamba, Gu and Dao, arXiv 2312.00752; gated delta nets, Yang et al., arXiv 2412.06464) holds one state
and a window of a convolution, both changed by every token. No crop takes a token out of them, so a copy is kept from
before. Layers with a window alone (LFM2's) can be cropped, as those with keys and values.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin, LinearAttentionLayer

#: A kind of layer that keeps nothing but the window of a convolution.
_WINDOW_ALONE = "conv"

_answers: weakref.WeakKeyDictionary[PreTrainedModel, bool] = weakref.WeakKeyDictionary()


def keeps_state(model: PreTrainedModel) -> bool:
    """True if some layer's cache is a running state, which cannot be cropped."""
    if model not in _answers:
        cache = DynamicCache(config=model.config)
        kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
        _answers[model] = any(_with_state(layer) and kind != _WINDOW_ALONE for layer, kind in zip(cache.layers, kinds))
    return _answers[model]


def has_states(cache: Cache) -> bool:
    """True if some layer of a cache has a running state or a window, and not keys and values alone."""
    return bool(_layers(cache))


def _with_state(layer: object) -> bool:
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def can_go_back(layer: CacheLayerMixin, stateful: bool) -> bool:
    """True if rejected tokens can be taken back from this layer of a cache: by cropping it, or from its kept state.

    stateful: transformers says that the architecture has states. Layers that it brings itself keep some that cropping
    leaves as they are (DeepSeek-V4's compressed rows). A window beside a state would have the state keep the past, too.
    """
    if stateful and type(layer).__module__ != DynamicCache.__module__:
        return False
    return not getattr(layer, "is_sliding", False) if _with_state(layer) else layer.is_croppable


class KeptStates:
    """A copy of all states of a cache, as they are after a text's first `length` tokens."""

    def __init__(self, cache: Cache, length: int):
        self.length = length
        # Copies: passes over one token write into a state in place.
        self._copies = [(states, place, state.clone()) for states, place, state in _begun(cache)]
        self._flags = [(layer, dict(layer.has_previous_state)) for layer in _layers(cache)]

    @torch.inference_mode()  # in which the states were made
    def put_back(self) -> None:
        for states, place, copy in self._copies:
            states[place].copy_(copy)
        for layer, begun in self._flags:
            layer.has_previous_state.update(begun)


def _layers(cache: Cache) -> list[LinearAttentionLayer]:
    return [layer for layer in cache.layers if _with_state(layer)]


def _begun(cache: Cache) -> Iterator[tuple[dict[int, Tensor], int, Tensor]]:
    """Of each state that has begun, where it lies, its place there, and the state itself."""
    for layer in _layers(cache):
        for states in (layer.conv_states, layer.recurrent_states):
            for place, state in states.items():
                if state is not None and layer.has_previous_state[place]:
                    yield states, place, state


def states_of(cache: Cache) -> list[Tensor]:
    """All windows [1, channels, size] and states [1, ...] of a cache, layer by layer."""
    return [state for _, _, state in _begun(cache)]


def record_windows(cache: Cache) -> None:
    """Has layers with a sliding window keep what a rewind brings back; where there are states, they are kept apart."""
    for layer in cache.layers:
        if not _with_state(layer) and hasattr(layer, "activate_past_recording"):
            layer.activate_past_recording()


def crop_rows(cache: Cache, count: int) -> None:
    """Takes the last `count` keys and values out of the layers that have some; states stay as they are."""
    for layer in cache.layers:
        if not _with_state(layer):
            layer.crop(-count)
            continue
        kind: type[CacheLayerMixin]
        for kind in type(layer).__bases__:  # of a layer with both, the part with keys and values
            if issubclass(kind, CacheLayerMixin):
                kind.crop(layer, -count)
