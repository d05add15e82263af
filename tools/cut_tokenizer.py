"""Cuts a published tokenizer down to a few hundred tokens that behave as all of them do.

    python -m tools.cut_tokenizer FOLDER_OF_THE_PUBLISHED_ONE tests/data/tokenizers/NAME

What a text is split by, its normalisation, decoder, post-processing and all added tokens stay as they are. Of the
vocabulary stay the bytes and what `TEXT` is made of, with the merges that lead there; ids are counted anew.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from tools import asked

#: As tests/helpers/checkpoints/tokenizer_kinds.py has it.
TEXT = """Once upon a time there was a king, and the king's tale isn't 1234567 words long: it ends soon.
    def tale(words):
        return [word.strip() for word in words]  # 😀👩\u200d🚀
café naïve 你好，世界 שלום مرحبا ไทย γ ≤ α

\t<b>${x}</b> I'll WE'VE don't\r
"""

#: What of tokenizer_config.json stays.
SETTINGS = ("tokenizer_class", "bos_token", "eos_token", "pad_token", "unk_token", "clean_up_tokenization_spaces")


def cut(folder: pathlib.Path) -> dict[str, Any]:
    """The cut of the tokenizer.json in this folder."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in tokenizer["model"]["merges"]]
    used = set(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT, add_special_tokens=False).tokens)
    parts: dict[str, tuple[str, str]] = {}
    for left, right in merges:
        parts.setdefault(left + right, (left, right))
    tokens, waiting = set(pre_tokenizers.ByteLevel.alphabet()) & vocabulary.keys(), [*used & vocabulary.keys()]
    while waiting:
        token = waiting.pop()
        if token not in tokens:
            tokens.add(token)
            waiting += parts.get(token, ())
    added = [token["content"] for token in tokenizer["added_tokens"]]
    ordered = [*sorted(tokens - {*added}, key=vocabulary.get), *added]
    numbers = {token: number for number, token in enumerate(ordered)}
    tokenizer["model"]["vocab"] = {token: number for token, number in numbers.items() if token in tokens}
    tokenizer["model"]["merges"] = [pair for pair in merges if {*pair, "".join(pair)} <= tokens]
    for token in tokenizer["added_tokens"]:
        token["id"] = numbers[token["content"]]
    return tokenizer


if __name__ == "__main__":
    source, target = asked(__doc__, source="folder of the published one", target="folder to be written")
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(cut(source), ensure_ascii=False, separators=(",", ":"))
    (target / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    chosen = {name: settings[name] for name in SETTINGS if name in settings}
    (target / "tokenizer_config.json").write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
