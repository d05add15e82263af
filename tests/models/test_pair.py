"""A pair reads prompts, and refuses in a sentence those it cannot run."""

import numpy
import pytest
import torch
from refusal import refused
from tiny import END, VOCABULARY, byte_tokenizer, greedy_run, sentencepiece_tokenizer, tiny_model
from tokenizers import processors

from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.models.vocabularies import Translation


@pytest.fixture(scope="module")
def embedded():
    return load_pair(dtype="float32")


def prompt_refusal(pair, prompt, field="prompt", **settings):
    with refused(field) as caught:
        pair.encode(prompt, **settings)
    return str(caught.value)


def ended(kind):
    """A tokenizer that appends to a text what ends it, and how many tokens it puts in front."""
    inner = byte_tokenizer()
    tokens = {name: inner.convert_tokens_to_ids(name) for name in (END, "A", "B", "Z")}
    template = {"BERT": "A $A B", "T5": f"$A {END}", "Llama": f"A $A {END}", "MBart": "$A B Z"}[kind]
    used = [(name, number) for name, number in tokens.items() if name in template.split()]
    inner.backend_tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return inner, int(template.startswith("A"))


@pytest.mark.parametrize("kind", ["BERT", "T5", "Llama", "MBart"])
@pytest.mark.parametrize("text", ["a", "a tale", "AB", "B Z", f"a{END}", f"{END}{END}"])
def test_a_prompt_goes_on_where_its_text_ends(kind, text):
    """What begins a text stays, what is typed stays, and what the tokenizer appends is left out."""
    tokenizer, before = ended(kind)
    pair = ModelPair.of(tiny_model("llama"), None, tokenizer)
    typed = tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = tokenizer(text)["input_ids"]
    assert len(whole) > len(typed) + before
    assert list(pair.encode(text).ids) == whole[: before + len(typed)]
    assert pair.encode(text).text == text


@pytest.mark.parametrize("token_id", [VOCABULARY - 1, VOCABULARY, VOCABULARY + 31])
def test_ids_that_stand_for_no_token_are_read_and_shown_as_such(token_id):
    """Logits are often wider than the tokenizer; such a token is continued like any other."""
    pair = ModelPair.of(tiny_model("llama", vocab=VOCABULARY + 32), None, byte_tokenizer())
    assert pair.encode([5, token_id]).ids == (5, token_id)
    assert (pair.texts[token_id] == f"<id {token_id}>") == (token_id >= VOCABULARY)


@pytest.mark.parametrize(
    "prompt",
    ["a\u0000b", "\U0001f469\u200d\U0001f680", "\u05e9\u05dc\u05d5\u05dd", "<script>${x}{{y}}</script>", " ", "\n"],
)
def test_unusual_characters_are_read_as_they_are(embedded, prompt):
    encoded = embedded.encode(prompt)
    assert encoded.text == prompt
    assert embedded.tokenizer.decode(list(encoded.ids)) == prompt


def test_a_text_with_a_token_that_the_model_has_no_row_for_is_refused():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<extra>"])
    pair = ModelPair.of(tiny_model("llama"), None, tokenizer)
    assert "Token id 128 does not exist" in prompt_refusal(pair, "a tale <extra> told")


@pytest.mark.parametrize("other", [None, sentencepiece_tokenizer])
def test_a_draft_limits_neither_the_ids_nor_the_context(other):
    target, draft = tiny_model("llama", vocab=160), tiny_model("llama", max_position_embeddings=64)
    tokenizer = byte_tokenizer()
    translation = None if other is None else Translation(tokenizer, other())
    pair = ModelPair.of(target, draft, tokenizer, translation=translation)
    assert pair.context_length == 256 and pair.encode([150]).ids == (150,)
    assert "Token id 160" in prompt_refusal(pair, [160])
    greedy_run(pair, [3, 150, 7, 159], 10)


IDS = [(3, 4, 5), range(3, 6), list(numpy.arange(3, 6)), numpy.arange(3, 6), torch.tensor([3, 4, 5])]


@pytest.mark.parametrize("given", [[3, 4, 5], *IDS])
def test_token_ids_come_as_any_sequence_of_whole_numbers_and_are_the_prompt_that_their_text_is(embedded, given):
    prompt = embedded.encode(given)
    assert prompt.ids == (3, 4, 5) and embedded.encode(prompt.text) == prompt


#: (prompts, what is said of each)
REFUSED = [
    (["", [], (), torch.tensor([], dtype=torch.long)], "Write a prompt first: "),
    ([None, 7, b"bytes", {1: 2}, torch.tensor(3)], "A prompt is a text or a list of token ids"),
    (["ab\ud800c"], "Character 3 of the prompt is half of a surrogate pair"),
    ([[5] * 1024], "too long by 1:"),
    ([[5] * 1100], "too long by 77:"),
    (["word and \U0001f600 " * 10_000], "1,024"),
    (["a" * 5_000_000], "characters"),
    *(([ids], str(ids[0])) for ids in ([-1], [4096], [2**70], [True], [1.0], ["1"], [None], [[1]])),
]


@pytest.mark.parametrize("prompt, words", [(prompt, words) for prompts, words in REFUSED for prompt in prompts])
def test_a_prompt_that_cannot_be_run_is_refused_by_what_is_wrong_with_it(embedded, prompt, words):
    assert words in prompt_refusal(embedded, prompt)


def test_a_prompt_may_fill_the_context_up_to_one_token(embedded):
    assert len(embedded.encode([5] * 1023).ids) == 1023


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ '<bot>' if add_generation_prompt }}",
        # Which want content in parts.
        "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}<bot>",
        "{% for m in messages %}<{{ m.role }}>{{ (m.content | first)['text'] + '' }}{% endfor %}<bot>",
    ],
)
def test_the_chat_template_is_filled_in_and_waits_for_the_answer(template):
    pair = ModelPair.of(tiny_model("llama"), None, byte_tokenizer(chat_template=template))
    prompt = pair.encode("hi", chat=True)
    assert pair.has_chat_template and prompt.text == "<user>hi<bot>"
    assert prompt.ids == tuple(pair.tokenizer.encode(prompt.text, add_special_tokens=False))


def test_a_prompt_from_a_chat_template_has_its_first_token_once_and_is_not_filled_in_again():
    template = f"{END}{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% endfor %}}<bot>"
    tokenizer = byte_tokenizer(chat_template=template)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )
    pair = ModelPair.of(tiny_model("llama"), None, tokenizer)
    filled_in = pair.encode("hi", chat=True)
    assert filled_in.ids == pair.encode(filled_in.text).ids and filled_in.ids.count(0) == 1
    assert pair.encode("hi").ids[0] == 0, "other prompts still begin with it"
    assert f"begins with '{END}'" in prompt_refusal(pair, filled_in.text, field="chat", chat=True)
    # A template without tokens of its own is known by how it begins.
    plain = ModelPair.of(pair.target, None, byte_tokenizer(chat_template=template.removeprefix(END)))
    assert "begins with '<user>'" in prompt_refusal(plain, "<user>hi<bot>", field="chat", chat=True)
    assert plain.encode("What is <user>?", chat=True).text == "<user>What is <user>?<bot>"


def test_chat_is_refused_without_a_template_with_a_broken_one_and_for_ids(embedded):
    assert not embedded.has_chat_template
    assert "has no chat template" in prompt_refusal(embedded, "hi", field="chat", chat=True)
    broken = ("{% if %}", "{{ raise_exception('no users here') }}", "{{ messages[5].x.y }}", "{{ 1 / 0 }}")
    for template, words in (
        *((one, "cannot be filled in") for one in broken),
        ("<user>", "leaves the prompt out"),
    ):
        pair = ModelPair.of(embedded.target, None, byte_tokenizer(chat_template=template))
        assert words in prompt_refusal(pair, "hi", field="chat", chat=True)
    assert "not token ids" in prompt_refusal(embedded, [1, 2], field="chat", chat=True)
