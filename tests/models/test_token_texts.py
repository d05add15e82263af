"""Pieces join to the decoded text, whatever the tokens; chips show every id there is, and those there are not."""

import json
import pathlib
import random
import tempfile

import pytest
import tokenizer_kinds
from tiny import byte_tokenizer, sentencepiece_tokenizer
from tokenizer_kinds import TEXT
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, ByT5Tokenizer, CTRLTokenizer, PreTrainedTokenizerFast

from specviz.models.token_texts import REPLACEMENT, Detokenizer, TokenTexts

PUBLISHED = pathlib.Path(__file__).parents[1] / "data" / "tokenizers"

EMBEDDED = pathlib.Path(__file__).parents[2] / "assets" / "models" / "target"

HOSTILE = (
    "caf\u00e9 \U0001f600\U0001f469\u200d\U0001f680 \u05e9\u05dc\u05d5\u05dd \u0e44\u0e17\u0e22 a\u0000b <b>${x}</b>"
)

SPECIAL = ["<unk>", "</s>", "<pad>"]


def trained(model, pre, decoder, trainer, **settings):
    """A small tokenizer of the tokenizers library."""
    inner = Tokenizer(model(unk_token="<unk>") if model is not models.Unigram else model())
    inner.pre_tokenizer, inner.decoder = pre, decoder
    of_unknown = {"unk_token": "<unk>"} if model is models.Unigram else {}
    inner.train_from_iterator(
        [HOSTILE, "the tale of a king"] * 9,
        trainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False, **of_unknown, **settings),
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", pad_token="<pad>")


def ctrl():
    """Of the kind that marks where a word goes on."""
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = pathlib.Path(folder, "vocab.json"), pathlib.Path(folder, "merges.txt")
        tokens = ["<unk>", *(letter + mark for letter in "thealkinguof" for mark in ("", "@@")), "tale", "ta@@"]
        vocabulary.write_text(json.dumps({token: number for number, token in enumerate(dict.fromkeys(tokens))}))
        merges.write_text("#version\nt a\nl e</w>\nta le</w>\n")
        return CTRLTokenizer(str(vocabulary), str(merges), eos_token="<unk>")


def said_again():
    """Of the kind that writes a token once which is said twice, with more tokens than are tried."""
    words = ["<unk>", "</s>", "<pad>", "a", "the", "tale", "of", "king", *(f"w{number}" for number in range(3000))]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.CTC()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", pad_token="<pad>")


TOKENIZERS = {
    "embedded": lambda: AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True),
    "gpt2 style": lambda: byte_tokenizer(merges=(("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "ð"), ("ð", "Ł"))),
    "byte fallback": sentencepiece_tokenizer,
    "bytes that vanish": ByT5Tokenizer,
    "marks where words end": lambda: trained(
        models.BPE,
        pre_tokenizers.BertPreTokenizer(),
        decoders.BPEDecoder(suffix="</w>"),
        trainers.BpeTrainer,
        end_of_word_suffix="</w>",
    ),
    "marks where words go on": ctrl,
    "word pieces": lambda: trained(
        models.WordPiece, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), trainers.WordPieceTrainer
    ),
    "unigram": lambda: trained(
        models.Unigram, pre_tokenizers.Metaspace(), decoders.Metaspace(), trainers.UnigramTrainer
    ),
    "Qwen3's": lambda: AutoTokenizer.from_pretrained(PUBLISHED / "qwen3", local_files_only=True),
    "gpt-oss's": lambda: AutoTokenizer.from_pretrained(PUBLISHED / "gpt-oss", local_files_only=True),
    "in the manner of Llama 3": lambda: tokenizer_kinds.like_llama3([TEXT] * 3),
    "in the manner of DeepSeek": lambda: tokenizer_kinds.like_deepseek([TEXT] * 3),
    "in the manner of Gemma": lambda: tokenizer_kinds.like_gemma([TEXT] * 3),
    "in the manner of Llama 2": lambda: tokenizer_kinds.like_gemma([TEXT] * 3, strips=True),
    "words said again": said_again,
    "words": lambda: trained(models.WordLevel, pre_tokenizers.Whitespace(), None, trainers.WordLevelTrainer),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def texts(request):
    return TokenTexts(TOKENIZERS[request.param]())


def pieces_of(texts, ids, prompt_ids):
    detokenizer = Detokenizer(texts, prompt_ids)
    return [detokenizer.push(token_id) for token_id in ids], detokenizer.flush()


def decoded(texts, ids):
    return texts.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def drawing(texts, rng):
    """Draws random ids, half of them of tokens that need care: else two of these would rarely come together."""
    known = sorted(set(texts.tokenizer.get_vocab().values()))[:3000]
    partial = [token_id for token_id in known if texts.fixed_text(token_id) is None] or known

    def draw(length):
        drawn = [rng.choice(partial if rng.random() < 0.5 else known) for _ in range(length)]
        # At times said twice, and with an id that stands for no token.
        return [again for token_id in drawn for again in [token_id] * rng.choice((1, 1, 1, 2))] + [2**30] * (length % 2)

    return draw


def assert_pieces_join(texts, ids, prompt_ids):
    pieces, rest = pieces_of(texts, ids, prompt_ids)
    known = [token_id for token_id in ids if token_id != 2**30]
    assert decoded(texts, prompt_ids) + "".join(pieces) + rest == decoded(texts, [*prompt_ids, *known]), ids


def test_pieces_of_random_tokens_join_to_the_decoded_text(texts):
    rng = random.Random(0)
    draw = drawing(texts, rng)
    for turn in range(300):
        # Now and then more than are kept in mind.
        assert_pieces_join(texts, draw(rng.randrange(100 if turn % 50 == 0 else 12)), [])


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.wide) for name in tokenizer_kinds.names()])
def test_pieces_join_whatever_class_the_tokenizer_is_of(name, tmp_path):
    texts = TokenTexts(tokenizer_kinds.build(name, tmp_path))
    draw, prompt = drawing(texts, random.Random(0)), texts.tokenizer.encode("the tale", add_special_tokens=False)
    for length in (*range(12), 60, 120):
        for prompt_ids in ([], prompt, prompt * 20):
            assert_pieces_join(texts, draw(length), prompt_ids)
    assert all(texts.chip(token_id) for token_id in draw(100))


@pytest.mark.parametrize("length", [1, 8, 9, 40])
def test_a_long_run_without_a_text_of_its_own_is_not_forgotten(length, tmp_path):
    """Wav2Vec2 writes any number of its marks between words as one space, and none at the beginning of a text."""
    texts = TokenTexts(tokenizer_kinds.build("Wav2Vec2CTCTokenizer", tmp_path))
    word, mark = texts.tokenizer.convert_tokens_to_ids(["the", "|"])
    pieces, rest = pieces_of(texts, [*[word, mark] * 20, *[mark] * length, word], prompt_ids=())
    assert "".join(pieces) + rest == " ".join(["the"] * 21)
    assert texts.chip(mark) == "|"


@pytest.mark.parametrize("text", [HOSTILE, "the tale \U0001f600.", "", " the  tale"])
def test_written_text_comes_back_in_pieces(texts, text):
    ids = texts.tokenizer.encode(text, add_special_tokens=False)
    pieces, rest = pieces_of(texts, ids, prompt_ids=())
    assert "".join(pieces) + rest == decoded(texts, ids)
    assert all(REPLACEMENT not in piece for piece in pieces) or REPLACEMENT in decoded(texts, ids)


def test_the_token_that_completes_a_character_carries_it_whole():
    texts = TokenTexts(TOKENIZERS["embedded"]())
    ids = texts.tokenizer.encode("\U0001f600", add_special_tokens=False)
    assert len(ids) > 1, "the tokenizer has to split the emoji for this test"
    pieces, rest = pieces_of(texts, ids, prompt_ids=(65,))
    assert pieces == [""] * (len(ids) - 1) + ["\U0001f600"]
    assert rest == ""


@pytest.mark.parametrize(
    "kind, text, pieces, chips",
    [
        ("bytes that vanish", "hé!", ["h", "", "é", "!"], ["h", REPLACEMENT, REPLACEMENT, "!"]),
        ("marks where words end", "the tale", ["the", " tale"], [" the", " tale"]),
        ("marks where words go on", "tale the", ["tale", " t", "h", "e"], [" tale", " t", " h", " e"]),
    ],
)
def test_tokens_show_no_marks_and_lose_no_character(kind, text, pieces, chips):
    texts = TokenTexts(TOKENIZERS[kind]())
    ids = texts.tokenizer.encode(text, add_special_tokens=False)
    assert pieces_of(texts, ids, prompt_ids=()) == (pieces, "")
    assert [texts.chip(token_id) for token_id in ids] == chips


def test_special_tokens_have_empty_pieces_and_a_name(texts):
    end = texts.tokenizer.eos_token_id
    assert pieces_of(texts, [end, end], prompt_ids=()) == (["", ""], "")
    assert texts[end] == texts.tokenizer.eos_token


@pytest.mark.parametrize("token_id", [4_711_000, 2**40, -1])
def test_ids_beyond_the_vocabulary_are_named_and_leave_no_text(texts, token_id):
    assert texts[token_id] == f"<id {token_id}>"
    assert pieces_of(texts, [token_id], prompt_ids=()) == ([""], "")


@pytest.fixture
def decodes(texts, monkeypatch):
    """How many tokens each call of the tokenizer decoded, from here on."""
    sizes, decode = [], texts.tokenizer.decode
    monkeypatch.setattr(texts.tokenizer, "decode", lambda ids, **how: sizes.append(len(ids)) or decode(ids, **how))
    return sizes


@pytest.mark.parametrize("garbage", [False, True])
def test_a_token_costs_the_same_however_long_the_text_is(texts, decodes, garbage):
    ids = texts.tokenizer.encode("the tale of a king ", add_special_tokens=False)
    if garbage:
        known = sorted(texts.tokenizer.get_vocab().values())
        ids = [next((token_id for token_id in known if texts.fixed_text(token_id) is None), known[-1])]
    detokenizer = Detokenizer(texts, ids[:3])
    costs = []
    for _ in range(6):
        del decodes[:]
        for token_id in (ids * 100)[:100]:
            detokenizer.push(token_id)
        costs.append(sum(decodes) / 100)
    assert costs[-1] <= costs[1] + 10


@pytest.mark.parametrize("kind", ["embedded", "Qwen3's", "in the manner of Gemma", "word pieces", "unigram"])
def test_an_ordinary_token_seen_before_costs_no_decoding_at_all(kind, monkeypatch):
    texts = TokenTexts(TOKENIZERS[kind]())
    ids = texts.tokenizer.encode("the tale of a king ", add_special_tokens=False)
    ordinary = [token_id for token_id in ids if texts.fixed_text(token_id)]
    assert ordinary
    detokenizer = Detokenizer(texts, ordinary)
    monkeypatch.delattr(type(texts), "_decode")
    assert "".join(map(detokenizer.push, ordinary * 50)) == "".join(map(texts.fixed_text, ordinary)) * 50
