"""Under a grammar: which tokens may follow a text, so that all of it fits a JSON schema, a regular expression, or rules
in GBNF or Lark. llguidance (github.com/guidance-ai/llguidance) knows which.

All other logits become minus infinity, before temperature and filters. In a round this happens to the target's rows and
to a drafter's alike, each after its own text, drafted tokens included. So p and q are distributions like any others,
and the output follows the masked target, exactly. A drafter that copies has no logits: it may propose what the grammar
forbids, and such a token is rejected, because its p is 0. That costs a place in the draft, never exactness.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specviz.records.errors import SpecvizError, first_line
from specviz.rules.draft import Draft
from specviz.rules.transfer import to_device

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: How many texts are remembered: more than a round's largest draft has branches, with those of the round before.
MOST_TEXTS = 600

#: Tokens after the prompt.
Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a text stands in the grammar."""

    matcher: LLMatcher  # has read the text
    bits: np.ndarray  # a bit for each token that may follow, 0 for all if none may


class Grammar:
    """A grammar in one run. It answers for any text after the prompt, so a rejected draft leaves nothing behind."""

    def __init__(
        self, source: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int, end: frozenset[int], prompt_length: int
    ):
        """source: see `compiled`. end: the tokens that may follow once a text is complete.

        Raises SpecvizError (field ``grammar``) for a source or a tokenizer that llguidance cannot read, and without
        llguidance.
        """
        if importlib.util.find_spec("llguidance") is None:
            raise SpecvizError(
                "A grammar needs a package that is missing here: pip install llguidance, or empty the field.", "grammar"
            )
        self.vocab_size, self.prompt_length = vocab_size, prompt_length
        self.end = frozenset(id for id in end if id < vocab_size)
        tokens = _read_tokens(tokenizer, tuple(sorted(self.end)))
        #: The library needs an end token, where the models may have none.
        self.never = [] if self.end else tokens.eos_tokens
        self.start = compiled(source, tokens)
        self._places: OrderedDict[Text, _Place] = OrderedDict()

    def anew(self) -> Grammar:
        """The same with nothing remembered: of a run that is timed, no earlier one has looked up the texts."""
        other = copy.copy(self)
        other._places = OrderedDict()
        return other

    def text_of(self, committed: Sequence[int]) -> Text:
        """What follows the prompt."""
        return tuple(committed[self.prompt_length :])

    def texts_of(self, committed: Sequence[int], draft: Draft) -> list[Text]:
        """[n + 1] the texts that the target's rows follow."""
        texts = [self.text_of(committed)]
        for token, parent in zip(draft.tokens.tolist(), draft.parents):
            texts.append((*texts[parent + 1], token))
        return texts

    def allowed(self, text: Text) -> np.ndarray:
        """[vocab] bool: the tokens that may follow. None may after an end token, or where the text left the grammar."""
        return np.unpackbits(self._place(text).bits, count=self.vocab_size, bitorder="little").view(bool)

    def masked(self, logits: Tensor, texts: Sequence[Text]) -> Tensor:
        """Rows [n, vocab] of logits, each after one of the texts: minus infinity for every token that may not follow.

        A row stays as it is where that would leave no token. The target's is then never drawn from: the run ends where
        nothing may follow, and what the grammar forbids is never accepted. A drafter's may be: if it can propose none
        of the allowed tokens, it proposes one that will be rejected.
        """
        allowed = to_device(torch.from_numpy(np.stack([self.allowed(text) for text in texts])), logits.device)
        masked = logits.masked_fill(~allowed, -torch.inf)
        return torch.where(masked.amax(-1, keepdim=True) == -torch.inf, logits, masked)

    def _place(self, text: Text) -> _Place:
        place = self._places.get(text)
        if place is None:
            place = self._places[text] = self._read(text)
            if len(self._places) > MOST_TEXTS:
                self._places.popitem(last=False)
        self._places.move_to_end(text)
        return place

    def _read(self, text: Text) -> _Place:
        """Goes on from the text before the last token, where that is remembered."""
        before = self._places.get(text[:-1]) if text else None
        if before is not None and not before.bits.any():
            return before
        matcher = (self.start if before is None else before.matcher).deep_copy()
        unread = text if before is None else text[-1:]
        if matcher.try_consume_tokens(list(unread)) < len(unread) or not self.end.isdisjoint(unread):
            return _Place(matcher, np.zeros(1, np.uint8))
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8).copy()
        _require_no_error(matcher)
        for token in self.never:
            bits[token // 8] &= ~np.uint8(1 << token % 8)
        return _Place(matcher, bits)


class Ends:
    """Where a draft goes on that grows level by level. Without a grammar, nothing is masked."""

    def __init__(self, grammar: Grammar | None, committed: Sequence[int]):
        self.grammar = grammar
        self.texts = [] if grammar is None else [grammar.text_of(committed)]

    def masked(self, rows: Tensor) -> Tensor:
        """A row of logits [k, vocab] for each end."""
        return rows if self.grammar is None else self.grammar.masked(rows, self.texts)

    def grow(self, places: Sequence[int], tokens: Tensor) -> None:
        """By the next level's tokens [m]. places: [m] the end that each continues."""
        if self.grammar is not None:
            self.texts = [(*self.texts[place], token) for place, token in zip(places, tokens.tolist())]


def compiled(source: str, tokens: LLTokenizer) -> LLMatcher:
    """A grammar as its text writes it: a JSON schema begins with a brace, a regular expression stands between slashes,
    and anything else is GBNF or Lark. Raises SpecvizError (field ``grammar``) for one that cannot be read."""
    from llguidance import LLMatcher, LLParserLimits, grammar_from

    source = source.strip()
    try:
        if source.startswith("{"):
            grammar = grammar_from("json", json.loads(source))
        elif len(source) > 1 and source[0] == source[-1] == "/":
            grammar = grammar_from("regex", source[1:-1])
        else:
            grammar = grammar_from("grammar", source)
    except (ValueError, RecursionError) as error:
        raise _unreadable(first_line(error)) from error
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    _require_no_error(matcher)
    return matcher


def _require_no_error(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise _unreadable(first_line(ValueError(matcher.get_error())))


def _unreadable(reason: str) -> SpecvizError:
    return SpecvizError(
        "The grammar cannot be followed: {reason}. Enter a JSON schema, /a regular expression/, or rules in GBNF or "
        "Lark.",
        "grammar",
        reason=reason,
    )


@functools.lru_cache(2)
def _read_tokens(tokenizer: PreTrainedTokenizerBase, end: Text) -> LLTokenizer:
    """A tokenizer as the library reads it, which takes up to a second. end: its end tokens; empty: its own."""
    from llguidance.hf import from_tokenizer

    try:
        return from_tokenizer(tokenizer, eos_token=list(end) or None)
    except ValueError as error:
        raise SpecvizError(
            "No grammar can be followed with this model's tokenizer: the library reads those whose tokens are bytes "
            "({reason}).",
            "grammar",
            reason=first_line(error),
        ) from error
