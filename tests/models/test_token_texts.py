"""Pieces join to the decoded text, whatever the tokens; chips show every id there is, and those there are not."""

from __future__ import annotations

import json
import pathlib
import random
import tempfile
import time

import pytest
from tiny import byte_tokenizer, sentencepiece_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, ByT5Tokenizer, CTRLTokenizer, PreTrainedTokenizerFast

from specviz.models.token_texts import REPLACEMENT, Detokenizer, TokenTexts

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


def test_pieces_of_random_tokens_join_to_the_decoded_text(texts):
    rng = random.Random(0)
    known = sorted(texts.tokenizer.get_vocab().values())
    # Half of the draws from the tokens that need care, or random ids would rarely put two of them together.
    partial = [token_id for token_id in known if texts.whole(token_id) is None] or known
    for _ in range(4000):
        ids = [rng.choice(partial if rng.random() < 0.5 else known) for _ in range(rng.randrange(12))]
        pieces, rest = pieces_of(texts, ids, prompt_ids=())
        assert "".join(pieces) + rest == decoded(texts, ids), ids


def test_pieces_continue_the_prompt_as_one_text(texts):
    rng = random.Random(1)
    known = sorted(texts.tokenizer.get_vocab().values())
    prompt_ids = texts.tokenizer.encode("the tale", add_special_tokens=False)
    prompt = decoded(texts, prompt_ids)
    for _ in range(500):
        ids = [rng.choice(known) for _ in range(6)]
        pieces, rest = pieces_of(texts, ids, prompt_ids)
        assert prompt + "".join(pieces) + rest == decoded(texts, prompt_ids + ids)


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


def test_an_unfinished_character_is_shown_when_the_text_ends():
    texts = TokenTexts(TOKENIZERS["embedded"]())
    ids = texts.tokenizer.encode("a\U0001f600", add_special_tokens=False)[:-1]
    pieces, rest = pieces_of(texts, ids, prompt_ids=())
    assert "".join(pieces) == "a"
    assert rest == REPLACEMENT


def test_endless_garbage_bytes_are_given_out_as_they_settle():
    texts = TokenTexts(TOKENIZERS["embedded"]())
    first_byte = texts.tokenizer.encode("\U0001f600", add_special_tokens=False)[0]
    pieces, rest = pieces_of(texts, [first_byte] * 500, prompt_ids=())
    assert "".join(pieces).startswith(REPLACEMENT * 499)
    assert "".join(pieces) + rest == decoded(texts, [first_byte] * 500)


def test_special_tokens_have_empty_pieces_and_a_name(texts):
    end = texts.tokenizer.eos_token_id
    assert pieces_of(texts, [end, end], prompt_ids=()) == (["", ""], "")
    assert texts[end] == texts.tokenizer.eos_token


def test_a_special_token_inside_a_character_does_not_cut_it():
    texts = TokenTexts(TOKENIZERS["embedded"]())
    first, *others = texts.tokenizer.encode("\U0001f600", add_special_tokens=False)
    pieces, rest = pieces_of(texts, [first, texts.tokenizer.eos_token_id, *others], prompt_ids=())
    assert "".join(pieces) + rest == "\U0001f600"


def test_chips_keep_the_leading_space():
    embedded = TokenTexts(TOKENIZERS["embedded"]())
    assert embedded[embedded.tokenizer.encode(" upon", add_special_tokens=False)[0]].startswith(" ")
    fallback = TokenTexts(sentencepiece_tokenizer())
    assert fallback[fallback.tokenizer.convert_tokens_to_ids("▁tale")] == " tale"
    assert fallback[fallback.tokenizer.convert_tokens_to_ids("tale")] == "tale"


def test_a_chip_of_half_a_character_shows_the_replacement_sign():
    texts = TokenTexts(sentencepiece_tokenizer())
    assert texts.chip(texts.tokenizer.convert_tokens_to_ids("<0xF0>")) == REPLACEMENT
    assert texts.chip(texts.tokenizer.convert_tokens_to_ids("<0x0A>")) == "\n"


@pytest.mark.parametrize("token_id", [4_711_000, 2**40, -1])
def test_ids_beyond_the_vocabulary_are_named_and_leave_no_text(texts, token_id):
    assert texts[token_id] == f"<id {token_id}>"
    assert pieces_of(texts, [token_id], prompt_ids=()) == ([""], "")


def test_every_id_has_a_chip(texts):
    chips = [texts.chip(token_id) for token_id in range(max(texts.tokenizer.get_vocab().values()) + 100)]
    assert all(isinstance(chip, str) for chip in chips)


def test_an_ordinary_token_costs_the_hot_loop_next_to_nothing():
    texts = TokenTexts(TOKENIZERS["embedded"]())
    ids = texts.tokenizer.encode("once upon a time there was a king " * 50, add_special_tokens=False)
    pieces_of(texts, ids, prompt_ids=ids)
    quickest = min(_seconds_to_push(texts, ids) for _ in range(20))
    # 0.2 µs on an idle machine; the promise is 2 µs, the rest is for a busy one.
    assert quickest / len(ids) < 4e-6


def _seconds_to_push(texts, ids):
    detokenizer = Detokenizer(texts, ids)
    start = time.perf_counter()
    for token_id in ids:
        detokenizer.push(token_id)
    return time.perf_counter() - start
