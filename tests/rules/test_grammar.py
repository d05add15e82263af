"""Grammars: each kind of source, the tokens that may follow a text, and sentences for what cannot be followed."""

import importlib.util

import pytest
import tokenizer_kinds
import torch
from refusal import refusal
from tiny import byte_tokenizer, sentencepiece_tokenizer, tiny_model
from tiny_gguf import MERGES, SIZES, write_gguf

import specviz
from specviz.rules import grammar
from specviz.rules.grammar import Grammar

TEXT = [tokenizer_kinds.TEXT] * 3
TOKENIZERS = {
    "bytes": lambda: byte_tokenizer(MERGES),
    "few bytes to fall back on": sentencepiece_tokenizer,
    "Llama 2": lambda: tokenizer_kinds.like_gemma(TEXT, strips=True),
    "Llama 3": lambda: tokenizer_kinds.like_llama3(TEXT),
    "Gemma": lambda: tokenizer_kinds.like_gemma(TEXT),
    "DeepSeek": lambda: tokenizer_kinds.like_deepseek(TEXT),
}


def over(source: str, tokenizer=None, end: int = 0, vocab_size: int = 1000) -> Grammar:
    return Grammar(source, tokenizer or byte_tokenizer(), vocab_size, frozenset({end, 10**9}), prompt_length=0)


def chosen(followed: Grammar, text: tuple[int, ...] = ()) -> set[int]:
    return {*followed.allowed(text).nonzero()[0].tolist()}


def ids(text: str) -> set[int]:
    return {*byte_tokenizer().convert_tokens_to_ids(list(text))}


@pytest.mark.parametrize(
    "source",
    ['{"enum": [7, 85]}', "/7|85/", 'root ::= "7" | "85"', 'start: "7" | "85"', ' \n{"enum": [7, 85]}\n'],
    ids=["JSON schema", "regular expression", "GBNF", "Lark", "with spaces around"],
)
def test_every_kind_of_source_is_followed_to_its_end(source):
    followed = over(source)
    (seven,), (eight,), (five,) = ids("7"), ids("8"), ids("5")
    assert chosen(followed) == {seven, eight} and chosen(followed, (eight,)) == {five}
    for text in ((seven,), (eight, five)):
        assert chosen(followed, text) == {0}
    for text in ((five,), (five, seven), (eight, seven), (seven, seven), (seven, 0)):
        assert chosen(followed, text) == set(), "nothing follows what is forbidden, or over"


def test_answers_do_not_depend_on_what_was_asked_before(monkeypatch):
    monkeypatch.setattr(grammar, "MOST_TEXTS", 3)
    followed, (one, two) = over("/(12?)*/"), byte_tokenizer().convert_tokens_to_ids(list("12"))
    due = {
        (): {0, one},
        (one,): {0, one, two},
        (one, two): {0, one},
        (two,): set(),
        (one, two, one, one): {0, one, two},
    }
    for _ in range(3):
        assert {text: chosen(followed, text) for text in due} == due
    assert len(followed._places) == 3


@pytest.mark.parametrize("name", TOKENIZERS)
def test_with_every_tokenizer_all_of_a_texts_own_tokens_may_follow_and_spell_it(name):
    tokenizer = TOKENIZERS[name]()
    written = "the tale é"
    followed = over(f"/({written})+/", tokenizer, tokenizer.eos_token_id)
    text: tuple[int, ...] = ()
    while not followed.allowed(text)[tokenizer.eos_token_id]:
        text += (max(chosen(followed, text), key=lambda id: len(tokenizer.convert_ids_to_tokens(id))),)
    assert tokenizer.decode(text).strip() == written


def test_a_tokenizer_from_a_gguf_file_will_do(tmp_path):
    pair = specviz.load_pair(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama", **SIZES)), device="cpu")
    assert specviz.run(pair, "the", drafter=None, grammar="/ tale| king/").text in (" tale", " king")


def test_a_row_keeps_what_may_follow_and_stays_whole_where_that_would_be_nothing():
    followed, (seven,) = over("/7/", vocab_size=128), ids("7")
    rows = torch.zeros(3, 128)
    rows[2, seven] = -torch.inf  # as of a draft model that does not know the token
    masked = followed.masked(rows, [(), (5,), ()])
    assert masked[0].isfinite().nonzero().tolist() == [[seven]]
    assert torch.equal(masked[1:], rows[1:])


@pytest.mark.parametrize(
    "source, said",
    [
        ('{"type": "nope"}', "Invalid type: nope"),
        ('{"enum": []}', "Unsatisfiable schema"),
        ('{"type": "string"', "Expecting ',' delimiter"),
        ('{"enum": ' + "[" * 100_000, "recursion"),
        ('{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("/(a/", "invalid regex"),
        ("hello", "GBNF to Lark"),
        ("start: nope", 'unknown name: "nope"'),
    ],
)
def test_a_source_that_cannot_be_followed_is_refused_with_the_reason(source, said):
    assert said in refusal("grammar", over, source)


def test_a_tokenizer_that_the_library_cannot_read_and_a_missing_library_are_named(monkeypatch, tmp_path):
    for name in ("BertTokenizer", "ByT5Tokenizer"):
        assert "tokenizer" in refusal("grammar", over, "/a/", tokenizer_kinds.build(name, tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install llguidance" in refusal("grammar", over, "/a/")
