"""From token ids to text: one token as a chip, and a growing text cut into one piece per token.

A token can be half a character, so neither can be done by decoding ids one by one.
"""

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

REPLACEMENT = "\ufffd"

#: How many tokens are tried in pairs, to see whether the text of a pair is both texts.
_SAMPLE_SIZE = 256

#: How many tokens before a new one its text may depend on; and after how many the others are dropped.
_CONTEXT, _LONGEST_WINDOW = 8, 32

#: A continuation for trials: a decoder may count quotation marks to tell those that open from those that close.
_PROBE = "a \"a\" 'a' a"

#: How tokenizers with byte fallback (Llama 2, Mistral, Gemma) name the token of a single byte.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TokenTexts:
    """The text of every token of one tokenizer, computed on first use and kept.

    `texts[id]`, or `texts.chip(id)`, is the token as it stands inside a text: with its leading space, special tokens by
    name, bytes that are only part of a character as U+FFFD, and ids that the tokenizer lacks (logits are often padded
    beyond the vocabulary) as ``<id 4711>``. It never raises over an id.

    Texts come from `tokenizer.decode`, without transformers' tidying of spaces before punctuation
    (`clean_up_tokenization_spaces`), which the model did not write.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self._vocab_ids = frozenset(vocabulary.values())
        self._bytes = frozenset(id for token, id in vocabulary.items() if _BYTE_TOKEN.fullmatch(token))
        self._chips: dict[int, str] = {}
        # id -> text, for tokens whose text never depends on their neighbours; None for the others.
        self._fixed_texts: dict[int, str | None] = {}
        # A visible token to put in front: some decoders strip a text's first space.
        self._anchor: tuple[int, ...] = ()
        self._anchor_length = 0
        self._anchor = self._find_anchor()
        self._anchor_length = len(self._decode(self._anchor))
        added = (id for id, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._special = frozenset((*tokenizer.all_special_ids, *added))
        # Not all of them leave no trace: one may stand for a space, or keep two equal letters apart (CTC).
        bare = self._decode(2 * self._anchor)
        between = ((id, self._decode((*self._anchor, id, *self._anchor))) for id in self._special)
        self._hidden = frozenset(id for id, text in between if text == bare)
        #: True if a text is its tokens' own texts, one after the other, but for parts of characters. False where a
        #: token's mark says that a word ends with it or goes on (``</w>``, ``@@``), where bytes vanish that are not a
        #: whole character (ByT5), and where a repeated token is written once (CTC).
        self.joins = self._try_joining()
        self._probe = tuple(tokenizer.encode(_PROBE, add_special_tokens=False))

    def __getitem__(self, token_id: int) -> str:
        try:
            return self._chips[token_id]
        except KeyError:
            return self._chips.setdefault(token_id, self._describe(token_id))

    chip = __getitem__

    def decode(self, ids: Iterable[int], *, inside: bool = True) -> str:
        """The text of `ids` without special tokens, as it stands inside a text or (`inside=False`) at its beginning.

        Ids that the tokenizer lacks are skipped.
        """
        ids = tuple(ids)
        return self._decode(self._anchor + ids)[self._anchor_length :] if inside else self._decode(ids)

    def is_hidden(self, token_id: int) -> bool:
        """True if the token leaves no trace in decoded text: a special token, or an id that does not exist."""
        return token_id in self._hidden or token_id not in self._vocab_ids

    def is_byte(self, token_id: int) -> bool:
        """True if the token is one bare byte, whose text depends on the bytes around it."""
        return token_id in self._bytes

    def fixed_text(self, token_id: int) -> str | None:
        """The token's text inside any text; None if it depends on its neighbours, as half a character does."""
        try:
            return self._fixed_texts[token_id]
        except KeyError:
            text = self.decode((token_id,))
            mixed = REPLACEMENT in text or token_id in self._bytes
            return self._fixed_texts.setdefault(token_id, None if mixed else text)

    def certain(self, ids: Sequence[int], *, inside: bool) -> str:
        """The part of the text of `ids` that no later token changes: a character's first bytes end in one U+FFFD."""
        both = zip(self.decode(ids, inside=inside), self.decode((*ids, *self._anchor), inside=inside))
        alike = "".join(character for character, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))
        return alike.removesuffix(REPLACEMENT)

    def forget(self, ids: list[int], given_length: int, *, inside: bool) -> tuple[list[int], int]:
        """The last of these tokens, and how much of their own text is among the first `given_length` characters of all.

        Returns all of them if the text that follows depends on more than the last.
        """
        last, start = ids[-_CONTEXT:], 0
        for more in ((), self._probe):
            rest = self.decode((*ids, *more), inside=inside)[given_length:]
            behind = self.decode((*last, *more), inside=inside)
            start = start if more else len(behind) - len(rest)
            if start < 0 or behind[start:] != rest:
                return ids, given_length
        return last, start

    def _try_joining(self) -> bool:
        ordinary_ids = sorted(self._vocab_ids - self._special)
        # Drawn at random, because vocabularies are ordered. Each with another one, and with itself.
        sample = random.Random(0).sample(ordinary_ids, min(_SAMPLE_SIZE, len(ordinary_ids)))
        for first, second in zip(2 * sample, sample[1:] + sample[:1] + sample):
            before, after = self.fixed_text(first), self.fixed_text(second)
            if before is None or after is None:
                continue
            if "" in (before, after) or self.decode((first, second)) != before + after:
                return False
        return True

    def _decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        ids = [id for id in ids if id in self._vocab_ids]
        if not ids:
            return ""
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)

    def _describe(self, token_id: int) -> str:
        if token_id not in self._vocab_ids:
            return f"<id {token_id}>"
        if token_id in self._special or self.is_hidden(token_id):
            name = self._decode((token_id,), skip_special_tokens=False)
            return name or str(self.tokenizer.convert_ids_to_tokens(token_id))
        if not self.joins:
            return self.certain((token_id,), inside=True) or self._decode((token_id,)) or REPLACEMENT
        return self.decode((token_id,))

    def _find_anchor(self) -> tuple[int, ...]:
        """A token that always shows, whole: "a" if there is one, else the first that will do."""
        for token_id in (*self.tokenizer.encode("a", add_special_tokens=False)[-1:], *sorted(self._vocab_ids)):
            alone = self._decode((token_id,))
            if alone.strip() and REPLACEMENT not in alone and token_id not in self._bytes:
                return (token_id,)
        return ()


class Detokenizer:
    """Cuts a growing text into one piece per token; the pieces joined are exactly the text of all tokens.

    A token that ends inside a character has an empty piece; the token that completes the character carries all of it.
    Special tokens have empty pieces. A run of single-byte tokens (byte fallback) is held back until another token ends
    it, because one bad byte changes how such a decoder writes the whole run.

    The text is that of the tokens as they stand after the prompt: where a tokenizer drops a text's first space, it is
    dropped only if the prompt itself shows no text. A prompt cut inside a character stays cut.
    """

    def __init__(self, texts: TokenTexts, prompt_ids: Iterable[int]):
        self._texts = texts
        # The last tokens, and how much of their text was given out; no tokens where texts join and all of it was.
        self._window = [token_id for token_id in prompt_ids if not texts.is_hidden(token_id)]
        self._given_length = 0
        self._inside = texts.joins and bool(self._window)
        if self._inside:
            self._window.clear()
        elif self._window:
            self._given_length = len(texts.certain(self._window, inside=False))
            self._shorten()

    def push(self, token_id: int) -> str:
        """The text that this token made certain."""
        texts = self._texts
        if self._inside and not self._window:
            piece = texts.fixed_text(token_id)
            if piece is not None:
                return piece
        if texts.is_hidden(token_id):
            return ""
        self._window.append(token_id)
        if texts.is_byte(token_id):
            return ""
        certain = texts.certain(self._window, inside=self._inside)
        piece, self._given_length = certain[self._given_length :], max(self._given_length, len(certain))
        self._shorten()
        return piece

    @property
    def held_text(self) -> str:
        """The text still held back, as it stands; an unfinished character is U+FFFD."""
        return self._texts.decode(self._window, inside=self._inside)[self._given_length :] if self._window else ""

    def flush(self) -> str:
        """The text still held back, at the end; an unfinished character becomes U+FFFD."""
        text = self.held_text
        self._given_length += len(text)
        return text

    def _shorten(self) -> None:
        """Lets go of tokens on which no later text depends."""
        if self._texts.joins and not self.held_text:
            self._window, self._given_length, self._inside = [], 0, True
        elif len(self._window) > _LONGEST_WINDOW:
            self._window, self._given_length = self._texts.forget(self._window, self._given_length, inside=self._inside)
