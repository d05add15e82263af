"""A part that is read otherwise than it was trained is found, by what the target would keep of it."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
import torch
from assistant_files import assistant_config, assistant_weights, saved
from block_checkpoints import LAYOUTS, write_block
from published_heads import write_eagle, write_medusa
from tiny import save_model, save_pair, tiny_model, tiny_pair, with_heads

import specviz
from specviz.bench import wiring as instrument
from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.contesting import new_tokens, plain_request
from specviz.bench.wiring import Dictated, TriedReading, expected, listen, readings_of, verdict, wiring
from specviz.decoding.decoder import context_of
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.records.assets import EMBEDDED
from specviz.records.prompts import PRESETS
from specviz.records.words import Sentence, words

LOWER, HIGHER = (Sentence(f"hidden states one layer {way}") for way in ("lower", "higher"))


def test_the_tokens_that_are_kept_are_right_on_average_over_the_targets_own_texts():
    """Against all chains: each is drawn by the drafter, and each of its tokens kept with min(1, p / q)."""
    generator, vocab, depth = torch.Generator().manual_seed(0), 3, 3
    texts = [text for n in range(depth) for text in itertools.product(range(vocab), repeat=n)]
    logits = {who: {text: 2 * torch.randn(vocab, generator=generator) for text in texts} for who in "pq"}
    p, q = ({text: row.softmax(-1) for text, row in logits[who].items()} for who in "pq")
    mean = kept = 0.0
    for chain in itertools.product(range(vocab), repeat=depth):
        prefixes = [chain[:n] for n in range(depth)]
        rows = [torch.stack([rows[prefix] for prefix in prefixes]) for rows in (logits["q"], p)]
        chance = torch.stack([p[prefix][token] for prefix, token in zip(prefixes, chain)]).prod()
        mean += chance * expected(*rows, torch.tensor(chain))
        shared = [torch.minimum(p[prefix], q[prefix])[token] for prefix, token in zip(prefixes, chain)]
        # Chains that share their first tokens: each is counted as often as it is continued.
        kept += sum(torch.stack(shared[: n + 1]).prod() / vocab ** (depth - n - 1) for n in range(depth))
    assert mean.item() == pytest.approx(kept.item(), rel=1e-5)
    assert expected(None, p[()][None], torch.tensor([0])) == 0, "nothing is kept of nothing"


def own_heads(folder):
    return with_heads(tiny_pair("llama", layers=3))


def heads_of_a_hybrid(folder):
    """Bamba counts by itself from 0 in each pass."""
    return with_heads(tiny_pair("bamba"))


def medusa_of_frequent_tokens(folder):
    return published(folder, lambda part, target: write_medusa(part, target, "vllm, frequent tokens"))


def eagle(folder):
    return published(folder, write_eagle)


def blocks(folder):
    return published(folder, lambda part, target: write_block(part, target, LAYOUTS["DSpark DeepSpec"]))


def queries_over_the_targets_memory(folder):
    kinds = ["sliding_attention", "full_attention"] * 2
    target = save_model(folder / "target", tiny_model("gemma4", layers=4, layer_types=kinds, num_kv_shared_layers=2))
    config = assistant_config(vocab=128)
    part = saved(folder / "part", config, assistant_weights(config))
    return specviz.load_pair(target, part, device="cpu", dtype="float32")


def published(folder, write):
    target, _ = save_pair(folder, "qwen3", layers=3)
    write(folder / "part", tiny_pair("qwen3", layers=3).target)
    return specviz.load_pair(target, folder / "part", device="cpu", dtype="float32")


@pytest.mark.parametrize(
    "made", [own_heads, heads_of_a_hybrid, medusa_of_frequent_tokens, eagle, blocks, queries_over_the_targets_memory]
)
def test_at_each_place_a_reading_drafts_as_after_reading_the_text_anew(made, tmp_path):
    pair = replace(made(tmp_path), eos_ids=frozenset())
    readings = [one for name in pair.parts for one in readings_of(pair, name)]
    assert len(readings) > len(pair.parts)
    plain = plain_request(pair, PRESETS[0], 1.0, 12)
    listen(plain, readings, until=float("inf"))
    text, new = list(plain.prompt.ids), new_tokens(Contestant.of(PLAIN), plain)
    for one in readings:
        assert len(one.accepted[0]) == len(new) - instrument.GAMMA + 1
        for place in (0, 1, 5, len(one.accepted[0]) - 1):
            assert one.accepted[0][place] == pytest.approx(anew(one, plain, [*text, *new], len(text) + place), abs=1e-4)


@torch.inference_mode()
def anew(one, plain, text, length):
    request, chooser, tokens = one.request(plain), Dictated(), torch.tensor(text[length:])
    layers = one.part.feature_layers
    target = CachedModel(plain.pair.target, Stopwatch(plain.pair.device), layers)
    drafter = request.drafter(context_of(request, target, chooser))
    target.prefill(text[:length])
    drafter.prefill(text[:length], target.features)
    chooser.coming = iter(tokens.split(1))
    draft = drafter.propose(text[:length], instrument.GAMMA, torch.zeros(instrument.GAMMA))
    rows = CachedModel(plain.pair.target, Stopwatch(plain.pair.device))
    probs = rows.forward(torch.tensor(text[:-1]), rows_wanted=len(tokens)).softmax(-1)
    return expected(draft.logits, probs, tokens)


def test_neighbours_read_hidden_states_that_the_target_has():
    pair = with_heads(tiny_pair("llama", layers=4))
    layers = {name: [one.part.feature_layers for one in readings_of(pair, name)] for name in pair.parts}
    assert layers == {
        "medusa": [(4,), (3,), (4,)],
        "eagle": [(1, 2, 3), (0, 1, 2), (2, 3, 4), (1, 2, 3)],
        "mtp": [(4,), (3,), (4,), (4,)],
        "parallel": [(1, 2, 3), (0, 1, 2), (2, 3, 4), (1, 2, 3)],
    }
    assert pair.parts["eagle"].feature_layers == (1, 2, 3), "the part itself is not touched"
    assert list(wiring(tiny_pair("llama"), 60)) == [], "a pair without parts has nothing to look at"


def kept(*means, places=64):
    """Readings that keep so much on average, some places more than others."""
    wander = [(place * 7) % 10 / 10 for place in range(places)]
    names = (None, LOWER, HIGHER)
    return [TriedReading("eagle", None, name, [[mean + each for each in wander]]) for name, mean in zip(names, means)]


@pytest.mark.parametrize(
    "readings, state, seen",
    [
        (kept(2.0, 0.5, 0.6), "right", "3.44 tokens a pass ("),
        (kept(0.6, 2.0, 0.5), "slow", "hidden states one layer lower would give 1.4 more tokens a pass (1.4 to 1.4"),
        (kept(0.6, 0.5, 2.0), "slow", "hidden states one layer higher would give 1.4 more tokens a pass"),
        (kept(2.0, 2.0, 0.5), "skipped", "no other reading is better beyond chance: 3.44 tokens a pass ("),
        (kept(2.0), "skipped", "3.44 tokens a pass ("),
        (kept(2.0, 0.5, places=56), "skipped", "no time left for this check"),
    ],
)
def test_a_verdict_comes_with_its_interval_and_not_from_chance(readings, state, seen):
    found = verdict(Sentence("eagle"), readings)
    assert found.state == state and found.seen.startswith(seen)
    assert (found.advice is not None) == (state == "slow" or "time" in seen)
    if state == "slow":
        assert "Zustände eine Schicht" in words("de").reason(found.seen), "sentences within sentences are said too"


def test_the_embedded_eagle_head_is_read_as_it_was_trained_and_one_a_layer_off_is_found(tmp_path):
    folder = shutil.copytree(EMBEDDED / "eagle", tmp_path / "eagle")
    settings = json.loads((folder / "config.json").read_text())
    named = "eagle_aux_hidden_state_layer_ids"
    (folder / "config.json").write_text(json.dumps(settings | {named: [state + 1 for state in settings[named]]}))
    pair = specviz.load_pair(draft=folder, dtype="float32")
    readings = readings_of(pair, "eagle")
    for preset in PRESETS[:4]:
        plain = plain_request(pair, preset, 1.0, instrument.PLACES + instrument.GAMMA - 1)
        listen(plain, readings, until=float("inf"))
    off = verdict(Sentence("eagle"), readings)
    assert off.state == "slow" and off.seen.startswith("hidden states one layer lower would give"), off.seen
    wrong, right, *_ = readings
    trained = verdict(Sentence("eagle"), [replace(right, name=None), replace(wrong, name=HIGHER)])
    assert trained.state == "right", trained.seen
