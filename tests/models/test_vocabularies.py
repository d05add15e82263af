"""A draft model with another tokenizer: what the two share, what the draft reads, and that the output stays exact."""

import random
from dataclasses import replace

import pytest
import torch
from fake_target import verdict
from tiny import END, byte_tokenizer, greedy_run, sentencepiece_tokenizer, tiny_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specviz.drafters.base import DraftContext
from specviz.drafters.choosers import Draws, TopChoices
from specviz.drafters.draft_model import TranslatedDraftModel
from specviz.models.pair import ModelPair
from specviz.models.vocabularies import Reader, Translation, same_vocabulary, split_unfinished, token_bytes
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.records.settings import DraftParams, SamplingParams
from specviz.rules.sampling import Warper

SEA = "the old man went to the sea and the sea was calm, for the wind had gone to sleep. " * 3
CITY = "a city never sleeps: lights, trains and the rain on the windows of the cafés of the old town 😀. " * 3
MERGES = (
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("Ġ", "a"),
    ("t", "a"),
    ("l", "e"),
    ("ta", "le"),
    ("ð", "Ł"),
    ("ĺ", "Ģ"),
)


def trained(text, kind, size=300):
    """A tokenizer trained on `text`: "bytes" is byte-level BPE as in GPT-2, "pieces" Unigram as in T5."""
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<end>"], initial_alphabet=alphabet)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=["<end>", "<unk>"], unk_token="<unk>")
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


#: Name -> target's and draft's tokenizer.
PAIRS = {
    "two byte-level": lambda: (trained(SEA, "bytes"), trained(CITY, "bytes", 330)),
    "pieces draft for bytes": lambda: (trained(SEA, "bytes"), trained(CITY, "pieces", 90)),
    "bytes draft for pieces": lambda: (trained(CITY, "pieces", 90), trained(SEA, "bytes")),
    "byte fallback for byte-level": lambda: (byte_tokenizer(merges=MERGES), sentencepiece_tokenizer()),
    "byte-level for byte fallback": lambda: (sentencepiece_tokenizer(), byte_tokenizer(merges=MERGES)),
}


@pytest.fixture(scope="module", params=PAIRS)
def translation(request):
    return Translation(*PAIRS[request.param]())


@pytest.fixture(scope="module")
def fallback():
    """A byte-level target, and a draft with byte fallback that has the emoji and "é" whole."""
    return Translation(*PAIRS["byte fallback for byte-level"]())


def id_of(texts, token):
    return texts.tokenizer.convert_tokens_to_ids(token)


def tokens_of(texts, text):
    return texts.tokenizer.encode(text, add_special_tokens=False)


# -------------------------------------------------------------------------------------------------- what is shared


def test_shared_tokens_write_the_same_one_to_one_and_are_not_special(translation):
    target, draft = translation.target_texts, translation.draft_texts
    draft_ids, target_ids = zip(*translation.pairs)
    assert len(set(draft_ids)) == len(set(target_ids)) == len(translation.pairs) > 10
    assert list(target_ids) == sorted(target_ids)
    for draft_id, target_id in translation.pairs:
        assert draft.chip(draft_id) == target.chip(target_id)
        assert not draft.is_hidden(draft_id) and not target.is_hidden(target_id)


def test_every_token_that_both_write_is_shared(translation):
    of_target, of_draft = (set(token_bytes(t).values()) for t in (translation.target_texts, translation.draft_texts))
    target_bytes = {translation.bytes_of(target_id) for _, target_id in translation.pairs}
    assert target_bytes == of_target & of_draft


def test_a_letter_is_not_taken_for_the_byte_that_bears_its_name():
    """The byte-level alphabet writes byte C3 as "Ã", which is a letter to everybody else."""
    letters = Tokenizer(models.WordLevel({"Ã": 0, "é": 1, "a": 2}, unk_token="a"))
    letters.decoder = decoders.Fuse()
    translation = Translation(byte_tokenizer(merges=(("Ã", "©"),)), PreTrainedTokenizerFast(tokenizer_object=letters))
    target, pairs = translation.target_texts, dict(translation.pairs)
    assert pairs == {1: id_of(target, "Ã©"), 2: id_of(target, "a")}


def test_of_a_letter_and_its_bare_byte_the_letter_is_shared(fallback):
    shared = {fallback.draft_texts.tokenizer.convert_ids_to_tokens(draft_id) for draft_id, _ in fallback.pairs}
    assert "e" in shared and "<0x65>" not in shared and "<0x0A>" in shared


def test_a_vocabulary_that_only_grows_at_its_end_is_the_same_vocabulary():
    small, large = byte_tokenizer(), byte_tokenizer(merges=(("t", "h"),))
    assert same_vocabulary(small, large) and same_vocabulary(large, small)
    assert not same_vocabulary(large, byte_tokenizer(merges=(("h", "e"),)))
    assert not same_vocabulary(small, sentencepiece_tokenizer())


@pytest.mark.parametrize("text", [b"", b"a", "é".encode(), "a😀".encode(), b"\x80\x80\x80\x80", b"\xff", b"\xf0\x9fa"])
def test_a_text_of_whole_or_broken_characters_has_no_unfinished_one(text):
    assert split_unfinished(text) == (text, b"")


def test_an_unfinished_character_is_cut_off_wherever_it_breaks():
    for character in "é€😀":
        for length in range(1, len(character.encode())):
            begun = character.encode()[:length]
            assert split_unfinished(b"a" + begun) == (b"a", begun)


# ------------------------------------------------------------------------------------------- what the draft reads


def test_a_prompt_is_split_as_the_drafts_own_tokenizer_splits_it(translation):
    prompt = "the old town"
    reader = Reader(translation, tokens_of(translation.target_texts, prompt))
    assert reader.ids == translation.draft_texts.tokenizer(prompt)["input_ids"]


@pytest.mark.parametrize("seed", range(5))
def test_how_the_text_came_does_not_matter(translation, seed):
    """One token at a time, in pieces, at once: the draft reads the same, whatever the tokens are."""
    pick = random.Random(seed)
    known = sorted(translation.target_texts.tokenizer.get_vocab().values())
    ids = tokens_of(translation.target_texts, "the ") + pick.choices([*known, 10**6], k=40)
    slow, quick, some = (Reader(translation, ids[:1]) for _ in range(3))
    for end in range(1, len(ids) + 1):
        slow.follow(ids[:end])
        if pick.random() < 0.3:
            some.follow(ids[:end])
    quick.follow(ids), some.follow(ids)
    assert slow.ids == quick.ids == some.ids and slow.settled == quick.settled == some.settled


def test_a_token_is_itself_where_both_have_it_and_is_spelt_where_not(fallback):
    target, draft = fallback.target_texts, fallback.draft_texts
    reader = Reader(fallback, tokens_of(target, "a"))
    start = len(reader.ids)
    reader.follow([*tokens_of(target, "a"), id_of(target, "tale"), id_of(target, "th")])
    names = draft.tokenizer.convert_ids_to_tokens(reader.ids[start:])
    assert names == ["tale", "t", "h"] and "th" not in draft.tokenizer.get_vocab()


def test_half_a_character_stands_as_bytes_until_it_is_whole():
    """The target writes the emoji in two tokens, the draft has it whole, and its bytes."""
    target = byte_tokenizer(merges=(("ð", "Ł"), ("ĺ", "Ģ"), ("Ł", "ĺ")))
    translation = Translation(target, sentencepiece_tokenizer())
    halves = [id_of(translation.target_texts, half) for half in ("ðŁ", "ĺĢ")]
    prompt = tokens_of(translation.target_texts, "a")
    reader = Reader(translation, prompt)
    before, name = list(reader.ids), translation.draft_texts.tokenizer.convert_ids_to_tokens
    reader.follow([*prompt, halves[0]])
    assert reader.ids[: reader.settled] == before and name(reader.ids[reader.settled :]) == ["<0xF0>", "<0x9F>"]
    reader.follow([*prompt, *halves])
    assert name(reader.ids[len(before) :]) == ["😀"] and reader.settled == len(reader.ids)
    cut = Reader(translation, [*prompt, halves[0]])
    assert cut.ids[: cut.settled] == before and cut.unfinished == b"\xf0\x9f"
    cut.follow([*prompt, *halves])
    assert cut.ids == reader.ids
    cut = Reader(translation, [*prompt, halves[0]])
    cut.follow([*prompt, halves[0], *prompt])
    assert name(cut.ids[len(before) :]) == ["<0xF0>", "<0x9F>", "a"]


def test_special_tokens_are_read_by_their_part_or_name_and_else_passed_over():
    target, draft = sentencepiece_tokenizer(), trained(CITY, "bytes")
    translation = Translation(target, draft)
    ids = [1, *target.encode("the tale", add_special_tokens=False), 2, *target.encode("a", add_special_tokens=False)]
    tokens = draft.convert_ids_to_tokens(Reader(translation, ids).ids)
    assert tokens.count("<end>") == 1 and "".join(tokens).replace("Ġ", " ").split("<end>") == ["the tale", " a"]
    reader = Reader(translation, ids)
    reader.follow([*ids, 0, 2])
    assert draft.convert_ids_to_tokens(reader.ids[-1]) == "<end>" and len(reader.ids) == len(tokens) + 1


def test_the_draft_opens_a_text_as_it_was_taught_to_and_once():
    opening = sentencepiece_tokenizer()
    opening.add_bos_token = True
    assert opening("a")["input_ids"][0] == 1
    prompt = byte_tokenizer(merges=MERGES).encode("the tale", add_special_tokens=False)
    translation = Translation(byte_tokenizer(merges=MERGES), opening)
    for ids in (prompt, [0, *prompt]):
        assert Reader(translation, ids).ids == opening("the tale")["input_ids"]


# ------------------------------------------------------------------------------------- drafting, by hand and exact


def endless(pair):
    """The pair without end tokens, so that a run is as long as was asked for."""
    return replace(pair, eos_ids=frozenset())


def translated_pair(architecture="llama", tokenizers="byte fallback for byte-level", layers=2):
    """Two tiny models with tokenizers of their own; both have logits that stand for no token."""
    target, other = PAIRS[tokenizers]() if isinstance(tokenizers, str) else tokenizers
    pair = ModelPair.of(
        tiny_model(architecture, vocab=len(target) + 3, layers=layers),
        tiny_model(architecture, vocab=len(other) + 5, layers=layers, seed=4),
        target,
        translation=Translation(target, other),
    )
    return endless(pair)


@torch.no_grad()
def renumbered_pair(noise=0.0, **draft):
    """Target and draft with the same weights up to noise, but the draft numbers its tokens backwards."""
    target = byte_tokenizer(merges=MERGES)
    numbered = sorted(target.get_vocab().items(), key=lambda item: item[1])
    names = [name for name, _ in reversed(numbered) if name != END]
    vocabulary = {END: 0} | {name: index + 1 for index, name in enumerate(names)}
    backwards = Tokenizer(models.BPE(vocab=vocabulary, merges=list(MERGES)))
    backwards.pre_tokenizer, backwards.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backwards.add_special_tokens([AddedToken(END, special=True)])
    other = PreTrainedTokenizerFast(tokenizer_object=backwards, eos_token=END)
    first, second = (tiny_model("llama", vocab=len(target), **settings) for settings in ({}, draft))
    order = [vocabulary[name] for name, _ in numbered]
    for get in ("get_input_embeddings", "get_output_embeddings"):
        getattr(second, get)().weight[order] = getattr(first, get)().weight.clone()
    generator = torch.Generator().manual_seed(1)
    for parameter in second.parameters():
        parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return endless(ModelPair.of(first, second, target, translation=Translation(target, other)))


def drafter_of(pair, sampling, branches=1):
    return TranslatedDraftModel(
        DraftContext(
            pair=pair,
            params=DraftParams(),
            branches=branches,
            chooser=TopChoices() if sampling.greedy else Draws(Warper(sampling)),
            target=CachedModel(pair.target, Stopwatch(pair.device)),
        )
    )


GREEDY = SamplingParams(temperature=0)
SETTINGS = [{}, {"branches": 2}, {"confidence": 0.3}]


@pytest.mark.parametrize("tokenizers", PAIRS)
def test_greedy_output_is_the_targets_own_between_strangers(tokenizers):
    pair = translated_pair(tokenizers=tokenizers)
    for prompt in ("the tale of a café 😀", [5, 9]):
        greedy_run(pair, list(pair.encode(prompt).ids), 30)


@pytest.mark.parametrize("drafting", SETTINGS, ids=str)
def test_greedy_output_is_the_targets_own_where_some_drafts_are_kept(drafting):
    pair = renumbered_pair(noise=0.05)
    run = greedy_run(pair, list(pair.encode("the tale").ids), 30, drafting=DraftParams(**drafting))
    assert 5 < sum(one.accepted for one in run.rounds) < sum(one.judged for one in run.rounds)


def test_the_draft_goes_silent_when_its_own_context_is_full_and_the_text_goes_on():
    pair = renumbered_pair(max_position_embeddings=24)
    assert pair.context_length == 256
    run = greedy_run(pair, list(pair.encode("the tale").ids), 60)
    read = len(run.prompt.ids)
    for one in run.rounds[:-1]:
        assert len(one.drafted) == min(4, max(0, 25 - read))
        read += len(one.emitted)


@pytest.mark.parametrize(("architecture", "branches"), [("llama", 1), ("llama", 2), ("gpt2", 1), ("gemma3", 1)])
@torch.inference_mode()
def test_the_drafts_cache_holds_what_it_would_read_afresh(architecture, branches):
    """Whatever is kept and whatever the target says next: half characters, special tokens, ids of no token."""
    pair, pick = translated_pair(architecture), random.Random(1)
    drafter, committed = drafter_of(pair, GREEDY, branches=branches), list(pair.encode("the tale 😀").ids)
    odd = [id_of(pair.texts, symbol) for symbol in ("ð", "ðŁ", "ĺ", "Ã", "©")] + [0, pair.vocab_size - 1]
    half, other_half = (id_of(pair.texts, symbol) for symbol in ("ðŁ", "ĺĢ"))
    drafter.prefill(committed)
    silent = 0
    for _ in range(60):
        draft = drafter.propose(committed, 3, torch.rand(8).double())
        ids = drafter.reader.ids
        if draft.parents:
            afresh = pair.draft(torch.tensor([ids])).logits[0, -1]
            shared = drafter.draft_of < afresh.shape[0]
            assert torch.allclose(draft.logits[0, shared], afresh[drafter.draft_of[shared]], atol=1e-4)
            assert draft.logits[0, ~shared].isneginf().all()
        silent += not draft.parents
        path, last = [], -1
        while pick.random() < 0.6 and last in draft.parents:
            last = pick.choice([index for index, parent in enumerate(draft.parents) if parent == last])
            path.append(last)
        following = pick.choice(odd) if pick.random() < 0.6 else pick.randrange(pair.vocab_size)
        if committed[-1] == half and pick.random() < 0.8:
            path, following = [], other_half
        tokens = [*draft.tokens[path].tolist(), following]
        drafter.observe_draft(len(committed), verdict(path, tokens), None)
        committed += tokens
    assert silent < 20 and committed.count(other_half) > 2
