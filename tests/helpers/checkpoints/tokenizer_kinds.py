"""One small tokenizer of every class that transformers has, all with the same tokens: marks of every kind among them.

A decoder then meets what its own vocabularies have and what they never should.
"""

import inspect
import json
import pathlib
from typing import Any

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, TokenizersBackend

#: Not built, and why: a package or more than a text is needed, or what they write is no text.
LEFT_OUT = {
    "sentencepiece": "Bartpho BertGeneration Cpm GPTSw3 M2M100 Marian PLBart Siglip Speech2Text SpeechT5",
    "sacremoses": "BioGpt Flaubert FSMT XLM",
    "another package": "CpmAnt FastSpeech2Conformer Pop2Piano RoFormer",
    "no tokenizers, or parts of others": "Auto Basic Character Mecab PreTrained Rag Wordpiece",
    "boxes on a page": "LayoutLMv2 LayoutLMv3 LayoutXLM",
    "sounds": "Vits Wav2Vec2PhonemeCTC",
}

#: What the cut tokenizers of tests/data are made for.
TEXT = """Once upon a time there was a king, and the king's tale isn't 1234567 words long: it ends soon.
    def tale(words):
        return [word.strip() for word in words]  # 😀👩\u200d🚀
café naïve 你好，世界 שלום مرحبا ไทย γ ≤ α

\t<b>${x}</b> I'll WE'VE don't\r
"""

_SPECIAL = "<pad> <s> </s> <unk> <mask> [PAD] [UNK] [CLS] [SEP] [MASK] <|endoftext|> <|startoftext|> <cls> <sep>"
_WORDS = "the tale of king é 😀 你 . , 's ' ! ll LL Á ש @ _"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_MARKED = [
    left + word + right
    for word in [*"abcdefghiklmnoprstuwy", *_WORDS.split(), *" \n", "__end__", "__start__", "__null__", "__unk__"]
    for left, right in (("", ""), ("▁", ""), ("##", ""), ("", "</w>"), ("", "@@"), ("Ġ", ""))
]
MERGES = [("t", "h"), ("Ġ", "t")]
_ODD = ["▁", "▁▁", "|", "Ã©", "ĠðŁ", "ĺĢ", "@@", "</w>", "##", "th", "Ġt"]
TOKENS = list(dict.fromkeys([*_SPECIAL.split(), *_MARKED, *_BYTES, *pre_tokenizers.ByteLevel.alphabet(), *_ODD]))
VOCABULARY = {token: number for number, token in enumerate(TOKENS)}


def names() -> list[str]:
    """Every tokenizer class of transformers, but for those left out."""
    left_out = {f"{stem}Tokenizer" for stems in LEFT_OUT.values() for stem in stems.split()}
    return sorted({name for name in dir(transformers) if name.endswith("Tokenizer")} - left_out)


def build(name: str, folder: pathlib.Path) -> Any:
    """A tokenizer of this class. folder: where to put its files, which some classes read."""
    kind = getattr(transformers, name)
    if issubclass(kind, TokenizersBackend):
        return kind(**_settings_of_fast(kind))
    wanted = inspect.signature(kind.__init__).parameters
    return kind(**{name: value for name, value in _files(kind, folder).items() if name in wanted})


def _settings_of_fast(kind: type[TokenizersBackend]) -> dict[str, Any]:
    if kind.__name__ == "EsmcTokenizer":  # brings its own
        return {}
    scored = [(token, 0.0 if token == "<unk>" else -float(number)) for token, number in VOCABULARY.items()]
    others = ("BarthezTokenizer", "CamembertTokenizer", "MLukeTokenizer")
    is_scored = kind.model is models.Unigram or kind.__name__ in others
    settings: dict[str, Any] = {"vocab": scored if is_scored else dict(VOCABULARY)}
    if kind.model is models.BPE:
        settings["merges"] = list(MERGES)
    if kind.__name__ == "MarkupLMTokenizer":
        settings["tags_dict"] = {"a": 0}
    return settings


def _files(kind: type[PreTrainedTokenizerBase], folder: pathlib.Path) -> dict[str, Any]:
    """Each file that any of the classes in Python reads."""

    def write(name: str, text: str) -> str:
        (folder / name).write_text(text, encoding="utf-8")
        return str(folder / name)

    one_a_line = [token for token in TOKENS if token.split() == [token]]
    vocabulary = numbers = write("vocab.json", json.dumps(VOCABULARY))
    if kind.__name__ in ("BertweetTokenizer", "PhobertTokenizer"):
        vocabulary = write("vocab.txt", "".join(f"{token} 1\n" for token in one_a_line))
    elif "Bert" in kind.__name__ or kind.__name__ in ("ProphetNetTokenizer", "TapasTokenizer", "EsmTokenizer"):
        vocabulary = write("vocab.txt", "\n".join(one_a_line))
    if kind.__name__ == "GPTNeoXJapaneseTokenizer":  # it writes unknown characters as their bytes
        byte_tokens = [f"<|byte{byte}|>" for byte in range(256)]
        vocabulary = write("vocab.txt", "\n".join([*one_a_line, *byte_tokens, "<SP>", "<BR>", "<|emoji1|>"]))
    if kind.__name__ == "ClvpTokenizer":  # its decoder takes no token outside its alphabet
        alphabet = {symbol: number for number, symbol in enumerate(pre_tokenizers.ByteLevel.alphabet())}
        vocabulary = write("vocab.json", json.dumps(alphabet | {"th": 256, "Ġt": 257, "[UNK]": 258}))
    if kind.__name__ == "MyT5Tokenizer":
        vocabulary = write("bytes.json", '{"decompose_map": {"61": "62"}, "merge_map": {"62 63": "64 65"}}')
    return {
        "vocab_file": vocabulary,
        "merges_file": write("merges.txt", "#version\nt h 1\nt h</w> 1\n"),
        "emoji_file": write("emoji.json", '{"emoji": {"😀": "<|emoji1|>"}, "emoji_inv": {"<|emoji1|>": "😀"}}'),
        "word_shape_file": numbers,
        "word_pronunciation_file": numbers,
    }


#: How they split a text, in the manner of published tokenizers whose files may not be passed on.
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK = (r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+")


def like_llama3(texts: list[str]) -> Any:
    """In the manner of Llama 3.1: bytes, merges passed over for whole words, begun by a special token."""
    return _bytes_split_by(_LLAMA_3, texts, ["<|begin_of_text|>", "<|eot_id|>", "<|reserved_special_token_0|>"], [])


def like_deepseek(texts: list[str]) -> Any:
    """In the manner of DeepSeek V3: bytes, split three times over, and turns marked by tokens that do show."""
    begin, end = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
    return _bytes_split_by(_DEEPSEEK, texts, [begin, end], ["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"])


def _bytes_split_by(patterns: tuple[str, ...], texts: list[str], special: list[str], shown: list[str]) -> Any:
    inner = Tokenizer(models.BPE(ignore_merges=True))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    inner.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    inner.add_special_tokens(special)
    inner.add_tokens([AddedToken(token, normalized=False) for token in shown])
    begin, end, *_ = special
    inner.post_processor = processors.TemplateProcessing(f"{begin} $A", None, [(begin, inner.token_to_id(begin))])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=begin, eos_token=end)


def like_gemma(texts: list[str], strips: bool = False) -> Any:
    """In the manner of Gemma 3: "▁" for spaces, bytes to fall back on, tags and runs of newlines as one token.

    strips: drop a text's first space, as Llama 2 does, which puts one there.
    """
    inner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    spaces = normalizers.Replace(" ", "▁")
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if strips else spaces
    first = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*first, decoders.Strip(" ", 1, 0)] if strips else first)
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=[*special, *_BYTES], limit_alphabet=60)
    inner.train_from_iterator(texts, trainer)
    # The trainer takes bytes for special tokens.
    written = json.loads(inner.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if token["content"] in special]
    inner = Tokenizer.from_str(json.dumps(written))
    inner.add_tokens([AddedToken(token, normalized=False) for token in ("\n\n", "<h1>", "▁▁")])
    inner.post_processor = processors.TemplateProcessing("<bos> $A", None, [("<bos>", 2)])
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **named)
