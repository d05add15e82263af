"""Drafts, chains and trees, judged in one call of C++ (judging.cpp)."""

from __future__ import annotations

import ctypes
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from specviz.passes.kernels import kernel_library
from specviz.rules.draft import Decision, Draft, Uniforms
from specviz.rules.sampling import require_numbers


class Judged(ABC):
    """A verdict on a draft of n tokens: a chain, or siblings as `verify_siblings` judges them."""

    def __init__(self, drafted: int, vocab: int, path: tuple[int, ...], tokens: tuple[int, ...]):
        self._shape = drafted, vocab
        self.path = path  # the accepted draft tokens
        self.tokens = tokens  # those, and the next token

    @property
    @abstractmethod
    def numbers(self) -> Tensor:
        """What `few_rows_judge` made, for a temperature above 0."""

    def probs(self) -> Tensor:
        """[n + 1, vocab] float32, softmax(logits / temperature), for a temperature above 0."""
        n, vocab = self._shape
        return self.numbers[: (n + 1) * vocab].view(n + 1, vocab)

    def decision(self) -> Decision:
        """The same as tensors, for a temperature above 0."""
        n, vocab = self._shape
        probs = self.numbers[(n + 1) * vocab :][:vocab]
        sums = probs.cumsum(-1, dtype=torch.float64)
        p, q, p_left, bounds = self.numbers[(n + 2) * vocab :].view(4, n)
        accepted = torch.zeros(n, dtype=torch.bool)
        accepted[list(self.path)] = True
        row = torch.tensor([self.path[-1] + 1 if self.path else 0])
        return Decision(accepted, p, q, bounds, row, torch.tensor(self.tokens[-1]), probs, sums, p_left)


def numbers_made(drafted: int, vocab: int) -> int:
    """How many numbers `few_rows_judge` makes: probabilities of rows and of the next token, four values a token."""
    return (drafted + 2) * vocab + 4 * drafted


def refuse_other_than_numbers(status: int) -> None:
    """Raises SpecvizError (field ``dtype``) for what `few_rows_judge` returns where logits are not numbers."""
    if status < 0:
        require_numbers(math.nan, drafted=status == -2)


class JudgedDraft(Judged):
    """A verdict in one call.

    logits: [n + 1, vocab] float32, the target's. temperature: 0 for greedy drafts. as_block: a chain by `verify_block`.
    The kernels must be loaded. Raises SpecvizError (field ``dtype``) where logits are not numbers (`require_numbers`).
    """

    def __init__(self, draft: Draft, logits: Tensor, uniforms: Uniforms, temperature: float, as_block: bool = False):
        n, vocab, logits = len(draft.parents), logits.shape[1], logits.contiguous()
        verdict, parents = (ctypes.c_int64 * (2 * n + 2))(), (ctypes.c_int64 * n)(*draft.parents)
        rows, row_count = found_rows(draft)
        place = None if rows is None else rows.data_ptr()
        drafted = draft.tokens.data_ptr(), parents, place, row_count
        judged = logits.data_ptr(), n, vocab, temperature, as_block, *drafted
        if temperature:
            self._numbers = torch.empty(numbers_made(n, vocab), dtype=torch.float32)
            drawn_from = None if draft.probs is None else place
            coins = uniforms.accept.data_ptr(), uniforms.next.data_ptr()
            accepted = _judge()(*judged, drawn_from, *coins, self._numbers.data_ptr(), verdict)
        else:
            self._numbers = torch.empty(0)
            accepted = _judge()(*judged, None, None, None, None, verdict)
        refuse_other_than_numbers(accepted)
        path, tokens = tuple(verdict[:accepted]), draft.tokens.tolist()
        super().__init__(n, vocab, path, (*[tokens[place] for place in path], verdict[2 * n + 1]))
        self.choices = tuple(verdict[n : 2 * n + 1])  # the likeliest token of each row

    @property
    def numbers(self) -> Tensor:
        return self._numbers


def found_rows(draft: Draft) -> tuple[Tensor | None, int]:
    """The drafter's rows, in which `few_rows_judge` looks for what is no number, and how many there are."""
    found = draft.logits if draft.probs is None else draft.probs
    return (None, 0) if found is None else (found.float().contiguous(), len(found))


@functools.cache
def _judge() -> Callable[..., int]:
    function = kernel_library.library().few_rows_judge
    memory, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [memory, number, number, ctypes.c_float, ctypes.c_bool, *[memory] * 3, number, *[memory] * 5]
    function.restype = number
    return function
