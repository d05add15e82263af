"""Two tokenizers side by side: which tokens write the same bytes, and one's text in the other's tokens.

What a draft model needs that has another tokenizer than the target: token-level intersection, Timor et al. 2025,
arXiv 2502.05202, Alg. 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from specviz.models.token_texts import TokenTexts


def same_vocabulary(one: Any, other: Any) -> bool:
    """Whether a token id means the same to both tokenizers.

    One may have further ids than the other: checkpoints of a family add tokens at the end.
    """
    of_one, of_other = ({id: token for token, id in tokenizer.get_vocab().items()} for tokenizer in (one, other))
    shared = of_one.keys() & of_other.keys()
    nested = len(shared) == min(len(of_one), len(of_other))
    return nested and all(of_one[token_id] == of_other[token_id] for token_id in shared)


class Translation:
    """The tokens that a draft model and a target with another tokenizer have in common, and how to get across.

    pairs: (draft id, target id) of the tokens that write the same bytes in the middle of a text, one to one, by
        target id. Special tokens are not among them: what they do is not what they spell.
    draft_size: how many tokens the draft's tokenizer has that write something.

    Tokens are matched by the bytes they write and not by their names, for each kind of tokenizer spells in its own way:
    " é" is "ĠÃ©" in one and "▁é" in another, while "Ã" is half a character here and a letter there. transformers'
    `AssistantToTargetTranslator` compares names with the leading space mark exchanged, which misses the first of
    these, takes the second two for one token, and pairs special tokens too.
    """

    def __init__(self, target_tokenizer: Any, draft_tokenizer: Any):
        self.target_texts, self.draft_texts = TokenTexts(target_tokenizer), TokenTexts(draft_tokenizer)
        self._target_bytes = token_bytes(self.target_texts)
        draft_bytes = token_bytes(self.draft_texts)
        self._draft_ids = _by_bytes(self.draft_texts, draft_bytes)
        self._longest = max(map(len, self._draft_ids), default=0)
        target_ids = _by_bytes(self.target_texts, self._target_bytes)
        shared = ((self._draft_ids[text], token_id) for text, token_id in target_ids.items() if text in self._draft_ids)
        self.pairs: tuple[tuple[int, int], ...] = tuple(sorted(shared, key=lambda pair: pair[1]))
        self.draft_size = len(draft_bytes)
        self._draft_of = {target_id: draft_id for draft_id, target_id in self.pairs}
        self._marks = self._shared_marks(target_tokenizer, draft_tokenizer)
        self._opening = _opening(draft_tokenizer)

    def spell(self, text: bytes) -> list[int]:
        """Draft ids that write `text`, the longest tokens first; bytes that no draft token writes are left out."""
        ids, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._draft_ids), None)
            if end is not None:
                ids.append(self._draft_ids[text[start:end]])
            start = end or start + 1
        return ids

    def draft_id(self, target_id: int) -> int | None:
        """The draft's token that writes the same; None if it has none."""
        return self._draft_of.get(target_id)

    def bytes_of(self, target_id: int) -> bytes:
        """What the target's token writes; nothing for special tokens and ids that do not exist."""
        return self._target_bytes.get(target_id, b"")

    def mark(self, target_id: int) -> int | None:
        """The draft's counterpart of a special token; None if it has none."""
        return self._marks.get(target_id)

    def encode(self, prompt: Sequence[int]) -> tuple[list[int], bytes]:
        """A prompt of target ids as the draft's own tokenizer splits it, opened with its own special tokens.

        Also the bytes of an unfinished character at its end, which are not part of the ids.
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
                # Both open a text alike: once is enough.
                ids += [mark for mark in marks if ids != self._opening or mark not in self._opening]
        return ids, unfinished

    def _encode_text(self, text: str, first: int | None) -> list[int]:
        """first: the target token at the text's beginning, where some decoders drop a space; None inside a text."""
        if first is not None and text.startswith(" "):
            text = text if self.target_texts.decode((first,), inside=False).startswith(" ") else text[1:]
        # verbose=False: the tokenizer would log a warning about long texts.
        return self.draft_texts.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def _shared_marks(self, target_tokenizer: Any, draft_tokenizer: Any) -> dict[int, int]:
        """Special tokens with one name, and those that begin and end a text, whatever their names."""
        known = draft_tokenizer.get_vocab()
        marks = {
            token_id: known[token]
            for token, token_id in target_tokenizer.get_vocab().items()
            if token in known and self.target_texts.is_hidden(token_id) and self.draft_texts.is_hidden(known[token])
        }
        for role in ("bos_token_id", "eos_token_id"):
            target_id, draft_id = getattr(target_tokenizer, role), getattr(draft_tokenizer, role)
            if target_id is not None and draft_id is not None:
                marks.setdefault(target_id, draft_id)
        return marks


class Reader:
    """The target's growing text in the draft's tokens: `ids`, of which the first `settled` will not change.

    A token that both have is itself. Any other is spelt from its bytes, and one that ends inside a character has to
    wait for the rest of it: until then the character's first bytes stand at the end by themselves, where the draft
    has tokens for them. Each token is read once, so the cost does not grow with the text.
    """

    def __init__(self, translation: Translation, prompt: Sequence[int]):
        self.translation = translation
        self.ids, self.unfinished = translation.encode(prompt)
        self.settled = len(self.ids)
        self.read = len(prompt)
        self.ids += translation.spell(self.unfinished)

    def follow(self, committed: Sequence[int]) -> None:
        """Reads what was committed since the last time."""
        del self.ids[self.settled :]
        for token_id in committed[self.read :]:
            self._push(token_id)
        self.read = len(committed)
        self.settled = len(self.ids)
        self.ids += self.translation.spell(self.unfinished)

    def _push(self, token_id: int) -> None:
        translation = self.translation
        text = translation.bytes_of(token_id)
        if self.unfinished and _continues(text):
            text = self.unfinished + text
        else:
            self.ids += translation.spell(self.unfinished)
            shared = translation.draft_id(token_id) if text else translation.mark(token_id)
            if shared is not None:
                self.ids.append(shared)
                text = b""
        whole, self.unfinished = split_unfinished(text)
        self.ids += translation.spell(whole)


def token_bytes(texts: TokenTexts) -> dict[int, bytes]:
    """What each token writes inside a text, as UTF-8.

    Left out: special tokens, and tokens of which that cannot be told.
    """
    written = {}
    for token, token_id in texts.tokenizer.get_vocab().items():
        if texts.is_byte(token_id):
            written[token_id] = bytes([int(token[3:5], 16)])
        elif (text := texts.whole(token_id)) is not None:
            written[token_id] = text.encode("utf-8")
        elif all(symbol in _BYTE_OF_SYMBOL for symbol in token):
            parts = bytes(_BYTE_OF_SYMBOL[symbol] for symbol in token)
            if parts.decode("utf-8", "replace") == texts.decode((token_id,)):
                written[token_id] = parts
    return {token_id: text for token_id, text in written.items() if text}


def split_unfinished(text: bytes) -> tuple[bytes, bytes]:
    """`text` without the first bytes of a character that is not complete at its end, and those bytes (at most 3)."""
    for length in range(1, min(3, len(text)) + 1):
        byte = text[-length]
        if 0xC0 <= byte < 0xF8:  # the first byte of a character; its upper bits say how many there are
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (text[:-length], text[-length:]) if wanted > length else (text, b"")
        if not 0x80 <= byte < 0xC0:
            break
    return text, b""


def _continues(text: bytes) -> bool:
    """Whether `text` begins inside a character."""
    return 0x80 <= text[0] < 0xC0 if text else False


def _by_bytes(texts: TokenTexts, written: dict[int, bytes]) -> dict[bytes, int]:
    """One token for each string of bytes: of several the one that is not a bare byte, then the lowest id."""
    ids: dict[bytes, int] = {}
    for token_id in sorted(written, key=lambda token_id: (texts.is_byte(token_id), token_id)):
        ids.setdefault(written[token_id], token_id)
    return ids


def _opening(tokenizer: Any) -> list[int]:
    """The special tokens that the tokenizer puts before a text."""
    bare, full = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    starts = (start for start in range(len(full)) if full[start : start + len(bare)] == bare)
    return full[: next(starts, 0)]


def _symbols() -> dict[str, int]:
    """The alphabet of byte-level tokenizers, symbol -> byte: visible bytes as themselves, others from U+0100 on.

    Radford et al. 2019 (GPT-2), `bytes_to_unicode` in the code that came with it.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


_BYTE_OF_SYMBOL = _symbols()
