"""Chains judged in one call (judged_chain.cpp), at a temperature and without filters.

Operation by operation a rule takes a tenth of a short round and more: after a pass has streamed its weights through the
cache, each operation must first be fetched anew.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from specviz.passes import kernel_library
from specviz.rules.draft import Decision, Draft, Uniforms


class JudgedChain:
    """What was decided about a chain of n drafted tokens.

    logits: [n + 1, vocab] float32, the target's. temperature: 0 for greedy drafts. as_block: by `verify_block`, not by
    `verify_token_by_token`. The kernels must be loaded.
    """

    def __init__(self, draft: Draft, logits: Tensor, uniforms: Uniforms, temperature: float, as_block: bool = False):
        n, vocab = self._shape = len(draft.parents), logits.shape[1]
        told = (ctypes.c_int64 * (2 * n + 2))()
        given = logits.data_ptr(), n, vocab, temperature, as_block, draft.tokens.data_ptr()
        if temperature:
            # In one piece: running sums in float64, probabilities of rows and of the next token, three values a token.
            self._made = torch.empty((n + 4) * vocab + 3 * n)
            probs = None if draft.probs is None else draft.probs.contiguous()
            drawn_from = None if probs is None else probs.data_ptr()
            coins = uniforms.accept.data_ptr(), uniforms.next.data_ptr()
            kept = _judge()(*given, drawn_from, *coins, self._made.data_ptr(), told)
        else:
            self._made, kept = None, _judge()(*given, None, None, None, None, told)
        self.path = tuple(range(kept))  # the draft tokens that are kept
        self.tokens = (*told[:kept], told[n])  # those, and the one after them
        self.choices = tuple(told[n + 1 :])  # the likeliest token of each row

    @property
    def bytes(self) -> int:
        return 0 if self._made is None else self._made.nbytes

    def probs(self) -> Tensor:
        """[n + 1, vocab] float32, softmax(logits / temperature), for a temperature above 0."""
        n, vocab = self._shape
        return self._made[2 * vocab : (n + 3) * vocab].view(n + 1, vocab)

    def decision(self) -> Decision:
        """The same as tensors, for a temperature above 0."""
        n, vocab = self._shape
        sums, probs = self._made[: 2 * vocab].view(torch.float64), self._made[(n + 3) * vocab :][:vocab]
        p, q, bounds = self._made[(n + 4) * vocab :].view(3, n)
        kept, row = torch.arange(n) < len(self.path), torch.tensor([len(self.path)])
        return Decision(kept, p, q, bounds, row, torch.tensor(self.tokens[-1]), probs, sums)


@functools.cache
def _judge() -> Callable[..., int]:
    function = kernel_library.library().few_rows_judge
    memory, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [memory, number, number, ctypes.c_float, ctypes.c_bool, *[memory] * 6]
    function.restype = number
    return function
