"""Two tokenizers side by side: which tokens write the same bytes, and one's text in the other's tokens.

For a draft model whose tokenizer differs from the target's: token-level intersection, Timor et al. 2025,
arXiv 2502.05202, Alg. 4.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from specviz.models.token_texts import TokenTexts

#: The alphabet of byte-level tokenizers: visible bytes stand for themselves, others begin at U+0100 (GPT-2's).
_BYTE_OF_SYMBOL = {symbol: byte for byte, symbol in bytes_to_unicode().items()}


def same_vocabulary(first: Any, second: Any) -> bool:
    """True if every token id means the same to both tokenizers.

    One may have more ids than the other: checkpoints of a family add tokens at the end.
    """
    first_tokens, second_tokens = (
        {id: token for token, id in tokenizer.get_vocab().items()} for tokenizer in (first, second)
    )
    shared = first_tokens.keys() & second_tokens.keys()
    nested = len(shared) == min(len(first_tokens), len(second_tokens))
    return nested and all(first_tokens[token_id] == second_tokens[token_id] for token_id in shared)


class Translation:
    """The tokens that a draft model and a target with different tokenizers share, and how to translate between them.

    Tokens are matched by the bytes they write, not by their names, because each kind of tokenizer has its own
    spelling: " é" is "ĠÃ©" in one and "▁é" in another, while "Ã" is half a character here and a letter there.
    transformers' `AssistantToTargetTranslator` compares names after exchanging the leading space mark, which misses the
    first of these, takes the other two for one token, and pairs special tokens too.
    """

    def __init__(self, target_tokenizer: Any, draft_tokenizer: Any):
        self.target_texts, self.draft_texts = TokenTexts(target_tokenizer), TokenTexts(draft_tokenizer)
        self._target_bytes = token_bytes(self.target_texts)
        draft_bytes = token_bytes(self.draft_texts)
        self._draft_ids = _by_bytes(self.draft_texts, draft_bytes)
        self._longest = max(map(len, self._draft_ids), default=0)
        target_ids = _by_bytes(self.target_texts, self._target_bytes)
        shared = ((self._draft_ids[text], token_id) for text, token_id in target_ids.items() if text in self._draft_ids)
        #: (draft id, target id) of tokens that write the same bytes inside a text, one to one, ordered by target id.
        #: Special tokens are not among them: they do not do what they spell.
        self.pairs: tuple[tuple[int, int], ...] = tuple(sorted(shared, key=lambda pair: pair[1]))
        self.draft_size = len(draft_bytes)  # tokens of the draft's tokenizer that write something
        self._draft_of = {target_id: draft_id for draft_id, target_id in self.pairs}
        self._marks = self._shared_marks(target_tokenizer, draft_tokenizer)
        self._opening = _opening(draft_tokenizer)

    def spell(self, text: bytes) -> list[int]:
        """Draft ids that write `text`, longest match first; bytes that no draft token writes are skipped."""
        ids, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._draft_ids), None)
            if end is not None:
                ids.append(self._draft_ids[text[start:end]])
            start = end or start + 1
        return ids

    def draft_id(self, target_id: int) -> int | None:
        """The draft's token that writes the same bytes; None if it has none."""
        return self._draft_of.get(target_id)

    def bytes_of(self, target_id: int) -> bytes:
        """The bytes that the target's token writes; none for special tokens and ids that do not exist."""
        return self._target_bytes.get(target_id, b"")

    def mark(self, target_id: int) -> int | None:
        """The draft's counterpart of a special token; None if it has none."""
        return self._marks.get(target_id)

    def encode(self, prompt: Sequence[int]) -> tuple[list[int], bytes]:
        """A prompt of target ids as the draft's tokenizer splits it, after its own opening special tokens.

        Also returns the bytes of an unfinished character at the end, which the ids do not cover.
        """
        ids, unfinished = list(self._opening), b""
        for writes, run in itertools.groupby(prompt, lambda token_id: token_id in self._target_bytes):
            if writes:
                tokens = list(run)
                ids += self.spell(unfinished)
                text, unfinished = split_unfinished(b"".join(map(self.bytes_of, tokens)))
                ids += self._encode_text(text.decode("utf-8", "replace"), tokens[0] if ids == self._opening else None)
            else:
                marks = [mark for mark in map(self.mark, run) if mark is not None]
                # Both may open a text alike: once is enough.
                ids += [mark for mark in marks if ids != self._opening or mark not in self._opening]
        return ids, unfinished

    def _encode_text(self, text: str, first: int | None) -> list[int]:
        """first: the target token at the beginning of the text, where some decoders drop a space; None inside it."""
        if first is not None and text.startswith(" "):
            text = text if self.target_texts.decode((first,), inside=False).startswith(" ") else text[1:]
        # verbose=False: the tokenizer would log a warning about long texts.
        return self.draft_texts.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def _shared_marks(self, target_tokenizer: Any, draft_tokenizer: Any) -> dict[int, int]:
        """Special tokens of the same name, and those that begin and end a text whatever their names."""
        vocab = draft_tokenizer.get_vocab()
        marks = {
            token_id: vocab[token]
            for token, token_id in target_tokenizer.get_vocab().items()
            if token in vocab and self.target_texts.is_hidden(token_id) and self.draft_texts.is_hidden(vocab[token])
        }
        for role in ("bos_token_id", "eos_token_id"):
            target_id, draft_id = getattr(target_tokenizer, role), getattr(draft_tokenizer, role)
            if target_id is not None and draft_id is not None:
                marks.setdefault(target_id, draft_id)
        return marks


class Reader:
    """The target's growing text in the draft's tokens: `ids`, whose first `settled` will not change.

    A shared token stays itself; any other is spelt from its bytes. A token that ends inside a character waits for the
    rest of it: until then the character's first bytes stand at the end, if the draft has tokens for them. Each token is
    read once, so the cost does not grow with the text.
    """

    def __init__(self, translation: Translation, prompt: Sequence[int]):
        self.translation = translation
        self.ids, self.unfinished = translation.encode(prompt)
        self.settled = len(self.ids)
        self.read_length = len(prompt)
        self.ids += translation.spell(self.unfinished)

    def follow(self, committed: Sequence[int]) -> None:
        """Reads the tokens committed since the last call."""
        del self.ids[self.settled :]
        for token_id in committed[self.read_length :]:
            self._push(token_id)
        self.read_length = len(committed)
        self.settled = len(self.ids)
        self.ids += self.translation.spell(self.unfinished)

    def _push(self, token_id: int) -> None:
        translation = self.translation
        text = translation.bytes_of(token_id)
        if self.unfinished and text and 0x80 <= text[0] < 0xC0:  # it begins inside a character
            text = self.unfinished + text
        else:
            self.ids += translation.spell(self.unfinished)
            shared = translation.draft_id(token_id) if text else translation.mark(token_id)
            if shared is not None:
                self.ids.append(shared)
                text = b""
        finished, self.unfinished = split_unfinished(text)
        self.ids += translation.spell(finished)


def token_bytes(texts: TokenTexts) -> dict[int, bytes]:
    """The bytes that each token writes inside a text, in UTF-8, without special tokens and those whose bytes cannot be
    determined."""
    written = {}
    for token, token_id in texts.tokenizer.get_vocab().items():
        if texts.is_byte(token_id):
            written[token_id] = bytes([int(token[3:5], 16)])
        elif (text := texts.fixed_text(token_id)) is not None:
            written[token_id] = text.encode("utf-8")
        elif all(symbol in _BYTE_OF_SYMBOL for symbol in token):
            parts = bytes(_BYTE_OF_SYMBOL[symbol] for symbol in token)
            if parts.decode("utf-8", "replace") == texts.decode((token_id,)):
                written[token_id] = parts
    return {token_id: text for token_id, text in written.items() if text}


def split_unfinished(text: bytes) -> tuple[bytes, bytes]:
    """`text` up to an incomplete character at its end, and the bytes of that character (at most 3)."""
    for length in range(1, min(3, len(text)) + 1):
        byte = text[-length]
        if 0xC0 <= byte < 0xF8:  # a character's first byte; its upper bits say how many bytes it has
            character_length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (text[:-length], text[-length:]) if character_length > length else (text, b"")
        if not 0x80 <= byte < 0xC0:
            break
    return text, b""


def _by_bytes(texts: TokenTexts, written: dict[int, bytes]) -> dict[bytes, int]:
    """One token for each byte string: if there are several, one that is not a bare byte, with the lowest id."""
    ids: dict[bytes, int] = {}
    for token_id in sorted(written, key=lambda token_id: (texts.is_byte(token_id), token_id)):
        ids.setdefault(written[token_id], token_id)
    return ids


def _opening(tokenizer: Any) -> list[int]:
    """The special tokens that the tokenizer puts in front of a text."""
    bare, full = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    starts = (start for start in range(len(full)) if full[start : start + len(bare)] == bare)
    return full[: next(starts, 0)]
