"""From token ids to text: one token as a chip, and a growing text cut into one piece per token.

A token can be half a character, so neither can be done by decoding ids one by one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

REPLACEMENT = "\ufffd"

#: Of how many tokens it is tried whether they follow one another as their texts say.
_TRIED = 256

#: Tokens before a new one that its text may depend on; and after how many they are forgotten.
_CONTEXT, _KEPT = 8, 32

#: How tokenizers with byte fallback (Llama 2, Mistral, Gemma) name the token of a single byte.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TokenTexts:
    """The text of every token of one tokenizer, computed on first use and kept.

    `texts[id]`, or `texts.chip(id)`, is the token as it stands inside a text: with its leading space, special tokens by
    name, bytes that are no whole character as U+FFFD, and ids that the tokenizer lacks (logits are often padded beyond
    the vocabulary) as ``<id 4711>``. It never raises.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self._known = frozenset(vocabulary.values())
        self._bytes = frozenset(id for token, id in vocabulary.items() if _BYTE_TOKEN.fullmatch(token))
        self._chips: dict[int, str] = {}
        # id -> text, for tokens whose text never depends on their neighbours; None for the others.
        self._whole: dict[int, str | None] = {}
        # A visible token to put in front: some decoders strip a text's first space.
        self._anchor: tuple[int, ...] = ()
        self._anchor_length = 0
        self._anchor = self._find_anchor()
        self._anchor_length = len(self._decode(self._anchor))
        self._special = frozenset(tokenizer.all_special_ids)
        #: Whether a text is its tokens' own texts, one after the other, but for parts of characters. It is not where a
        #: token's mark says that a word ends with it or goes on (``</w>``, ``@@``), or bytes vanish that are no whole
        #: character (ByT5).
        self.joins = self._try_joining()

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
        """Whether the token leaves no trace in decoded text: a special token, or an id that does not exist."""
        if not self.joins:
            return token_id in self._special or token_id not in self._known
        return self.whole(token_id) == "" and token_id not in self._bytes

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is one bare byte, whose text depends on the bytes around it."""
        return token_id in self._bytes

    def whole(self, token_id: int) -> str | None:
        """The token's text inside any text; None if it depends on its neighbours, as half a character does."""
        try:
            return self._whole[token_id]
        except KeyError:
            text = self.decode((token_id,))
            mixed = REPLACEMENT in text or token_id in self._bytes
            return self._whole.setdefault(token_id, None if mixed else text)

    def certain(self, ids: Sequence[int]) -> str:
        """As much of a text that begins with these tokens as no later one changes."""
        both = zip(self._decode(ids), self._decode((*ids, *self._anchor)))
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], both)
        return "".join(character for character, _ in alike).rstrip(REPLACEMENT)

    def _try_joining(self) -> bool:
        known = sorted(self._known - self._special)
        tried = known[:: max(1, len(known) // _TRIED)]
        for first, second in zip(tried, tried[len(tried) // 2 :] + tried[: len(tried) // 2]):
            texts = self.whole(first), self.whole(second)
            if None not in texts and ("" in texts or self.decode((first, second)) != "".join(texts)):
                return False
        return True

    def _decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        known = [id for id in ids if id in self._known]
        return self.tokenizer.decode(known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)

    def _describe(self, token_id: int) -> str:
        if token_id not in self._known:
            return f"<id {token_id}>"
        if self.is_hidden(token_id):
            return self._decode((token_id,), skip_special_tokens=False)
        if not self.joins:
            return self.certain((*self._anchor, token_id))[self._anchor_length :] or REPLACEMENT
        return self.decode((token_id,))

    def _find_anchor(self) -> tuple[int, ...]:
        """A token that always shows, whole: "a" if there is one, else the first that will do."""
        for token_id in (*self.tokenizer.encode("a", add_special_tokens=False)[-1:], *sorted(self._known)):
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
        self._pending: list[int] = []
        shown = [token_id for token_id in prompt_ids if not texts.is_hidden(token_id)]
        self._inside = bool(shown)
        # Where texts do not join: the last tokens, and how much of their text was given out.
        self._window = [] if texts.joins else shown[-_CONTEXT:]
        self._given = len(texts.decode(self._window, inside=False)) if self._window else 0

    def push(self, token_id: int) -> str:
        """The text that this token made certain."""
        if not self._texts.joins:
            return self._push_anew(token_id)
        if self._inside and not self._pending:
            piece = self._texts.whole(token_id)
            if piece is not None:
                return piece
        return self._push_slowly(token_id)

    @property
    def held(self) -> str:
        """The text still held back, as it stands; an unfinished character is U+FFFD."""
        if self._window:
            return self._texts.decode(self._window, inside=False)[self._given :]
        return self._text(self._pending) if self._pending else ""

    def flush(self) -> str:
        """The text still held back, at the end; an unfinished character becomes U+FFFD."""
        if self._window:
            held, self._given = self.held, self._given + len(self.held)
            return held
        return self._release() if self._pending else ""

    def _push_anew(self, token_id: int) -> str:
        """By decoding the last tokens together, and once more with another one after them."""
        texts = self._texts
        if texts.is_hidden(token_id):
            return ""
        self._window.append(token_id)
        certain = texts.certain(self._window)
        piece, self._given = certain[self._given :], max(self._given, len(certain))
        if len(self._window) > _KEPT and not self.held:
            self._window = self._window[-_CONTEXT:]
            self._given = len(texts.decode(self._window, inside=False))
        return piece

    def _push_slowly(self, token_id: int) -> str:
        texts = self._texts
        if texts.is_hidden(token_id):
            return ""
        if texts.is_byte(token_id):
            self._pending.append(token_id)
            return ""
        settled = self._release() if self._splits_before(token_id) else ""
        self._pending.append(token_id)
        if self._text(self._pending).endswith(REPLACEMENT):
            return settled
        return settled + self._release()

    def _splits_before(self, token_id: int) -> bool:
        """Whether the pending tokens share no character with the new one, so that no later token can change them."""
        if not self._pending:
            return False
        if self._texts.is_byte(self._pending[-1]):
            return True
        together = self._text([*self._pending, token_id])
        return together == self._text(self._pending) + self._texts.decode((token_id,))

    def _release(self) -> str:
        text = self._text(self._pending)
        self._pending.clear()
        self._inside = True
        return text

    def _text(self, ids: Sequence[int]) -> str:
        return self._texts.decode(ids, inside=self._inside)
