"""Published drafters that fill in masks: small folders of their form are drafted with as their papers say."""

import copy
import dataclasses
import itertools
import statistics
from functools import lru_cache

import pytest
import torch
from block_checkpoints import GROUP, GRU, HEAD, LAYOUTS, RANK, TAPS, Layout, mask_of, weights_of, write_block
from by_hand import attention, feed_forward, linear, norm
from fast_passes import MAKERS, assert_same_decisions, made_twice, with_passes
from published_heads import noted
from refusal import refused
from tiny import edit_config, greedy_run, save_pair, tiny_model, tiny_pair
from torch.nn import functional
from transformers import DynamicCache, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.cache_utils import DFlashCache

import specviz
from specviz.decoding import engine
from specviz.decoding.record import collect
from specviz.decoding.request import prepare
from specviz.drafters.draft_model import ParallelDraftModel
from specviz.drafters.heads import Parallel
from specviz.drafters.registry import drafter_class
from specviz.drafters.stepwise import Stepwise
from specviz.parts.dflash import DFlashHead
from specviz.parts.dspark import DSparkHead
from specviz.parts.part_files import PartFiles
from specviz.passes.kernels.chains import Gain
from specviz.passes.roles import Role
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules.draft import Draft

PROMPT = [3, 5, 7, 11, 3, 5]


def loaded(target, draft=None, **named):
    return specviz.load_pair(target, draft, device="cpu", dtype="float32", **named)


# PARD

MASK = 9


@pytest.fixture(scope="module", params=["pard", "pard2"])
def pard(tmp_path_factory, request):
    """A target, and a draft model whose folder says that it was adapted to masks."""
    target, draft = save_pair(tmp_path_factory.mktemp("pard"), "qwen2", noise=0.15)
    if request.param == "pard2":
        torch.save({"target_proj.weight": torch.zeros(48, 96)}, draft / "warp_model.bin")
    return loaded(target, edit_config(draft, spd_type=request.param, pard_token=MASK))


@pytest.mark.parametrize("mask", [128, -1, "9", None])
def test_a_pard_models_mask_is_one_of_its_tokens(mask, pard):
    odd = copy.copy(pard.draft)
    odd.config = copy.deepcopy(pard.draft.config)
    odd.config.pard_token = mask
    with refused("drafter", "is not one of its 128 tokens"):
        specviz.run(dataclasses.replace(pard, draft=odd), PROMPT, drafter="parallel")


@pytest.mark.parametrize("branches", [1, 3])
def test_a_pard_model_drafts_by_one_pass_over_the_text_and_masks(pard, branches, monkeypatch):
    looked, levels = [], ParallelDraftModel.rows_by_level

    def look(self, committed, depth):
        for rows in levels(self, committed, depth):
            looked.append((list(committed), rows))
            yield rows

    monkeypatch.setattr(ParallelDraftModel, "rows_by_level", look)
    run, _ = drafts_of(monkeypatch, pard, branches)
    for text, rows in looked:
        expected = pard.draft(torch.tensor([text + [MASK] * (len(rows) - 1)])).logits[0, -len(rows) :]
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4)
    assert {token.source for one in run.rounds for token in one.drafted} == {"row", "mask 1", "mask 2"}


@pytest.mark.parametrize("branches", [1, 3])
def test_a_pard_model_fills_in_masks_on_a_device_as_on_the_host(pard, branches):
    for one, other in zip(*made_twice(pard, sampled(pard, branches).settings), strict=True):
        assert_same_decisions(one, other)


def test_an_ordinary_draft_model_is_not_taken_for_one_with_masks(pard):
    assert drafter_class(pard, "parallel") is ParallelDraftModel
    assert drafter_class(tiny_pair("qwen2"), "parallel") is Parallel
    with pytest.raises(SpecvizError, match=r"python -m specviz\.training parallel"):
        specviz.speculate(tiny_pair("qwen2"), PROMPT, drafter="parallel")


# DFlash and DSpark


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("blocks"), "qwen3", layers=3)[0]


@pytest.fixture(scope="module")
def with_part(target, tmp_path_factory):
    """A layout's name -> the pair of the target and a checkpoint in that layout."""
    model = tiny_model("qwen3", layers=3)

    @lru_cache
    def load(name):
        folder = write_block(tmp_path_factory.mktemp("part"), model, LAYOUTS[name])
        return loaded(target, draft=folder)

    return load


class ByHand:
    """A block after a text, over the whole of it at once: DFlash, arXiv 2602.06036; DSpark, arXiv 2607.05147."""

    def __init__(self, layout: Layout, target, ids: list[int]):
        self.layout, self.target, self.ids = layout, target, ids
        self.weights = weights_of(layout, target)
        table, unembed = target.get_input_embeddings().weight, target.get_output_embeddings().weight
        if layout.own:
            table, unembed = self.weights["embed_tokens.weight"], self.weights["lm_head.weight"]
        states = target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        read = torch.cat([states[layer] for layer in layout.reads(len(states) - 1)], -1)[0, :-1]
        text = self.norm(self.linear(read, "fc"), "hidden_norm")
        self.table = table
        block = table[[ids[-1], *[mask_of(len(table))] * (layout.block - 1)]] * layout.scales[0]
        for layer, sees in enumerate(layout.sees):
            block = self.layer(f"layers.{layer}", text, block, sees)
        self.hidden = self.norm(block, "norm")
        self.logits = self.hidden @ unembed.T * layout.scales[1]
        if layout.softcap:
            self.logits = layout.softcap * (self.logits / layout.softcap).tanh()

    def norm(self, x, name):
        return norm(self.weights, name, x)

    def linear(self, x, name):
        return linear(self.weights, name, x)

    def layer(self, name, text, block, sees):
        first, end = len(text), len(text) + len(block)
        own, after = self.mixed(self.norm(block, f"{name}.input_layernorm"), f"{name}.attention_conv")
        seen = torch.tensor([[sees(one, other, first) for other in range(end)] for one in range(first, end)])
        block = block + after(attention(self.weights, f"{name}.self_attn", own, HEAD, torch.cat([text, own]), seen))
        inner, after = self.mixed(self.norm(block, f"{name}.post_attention_layernorm"), f"{name}.mlp_conv")
        return block + after(feed_forward(self.weights, f"{name}.mlp", inner))

    def mixed(self, x, name):
        """DFlash2's convolution before a product, and the one after it."""
        if self.layout.candidates is None:
            return x, lambda product: product
        added = self.linear(x, f"{name}.kernel_projection").reshape(len(x), 2, TAPS, -1)
        kernels = self.weights[f"{name}.base_kernel"] + added.repeat_interleave(GROUP, -1)

        def convolved(x, side):
            rows = [sum(kernels[i, side, t] * x[i - t] for t in range(min(i + 1, TAPS))) for i in range(len(x))]
            return torch.stack(rows)

        return convolved(x, 0), lambda product: convolved(product, 1)

    def row(self, branch: list[int]):
        """Logits [vocab] after the text and the draft tokens of this branch."""
        slot = len(branch) + (not self.layout.predicts_next)
        row = self.candidates(branch, slot) if self.layout.candidates else self.logits[slot]
        row = row + self.correction(branch, slot)
        if "d2t" not in self.weights:
            return row
        kept = self.weights["d2t"] + torch.arange(len(row))
        return torch.full((len(self.weights["t2d"]),), -torch.inf).index_put_((kept,), row)

    def candidates(self, branch, slot):
        tables = [self.weights[f"candidate_selector.{one}_codebook"] for one in ("predecessor", "successor")]
        before = tables[0][[self.ids[-1], *branch][-1]]
        gains = tables[1] @ (before * self.linear(self.hidden[slot], "candidate_selector.hidden_projection"))
        likely = self.logits[slot] >= self.logits[slot].topk(self.layout.candidates).values[-1]
        return (self.logits[slot] + gains).masked_fill(~likely, -torch.inf)

    def correction(self, branch, slot):
        if self.layout.gru is not None and len(branch) >= self.layout.gru:
            gru = torch.nn.GRU(len(self.table[0]), GRU, bias=False)
            gru.load_state_dict(
                {f"weight_{one}_l0": self.weights[f"prefix_gru.weight_{one}_l0"] for one in ("ih", "hh")}
            )
            state = gru(self.table[[self.ids[-1], *branch]])[0][-1]
            inner = functional.silu(self.linear(torch.cat([self.hidden[slot], state]), "embed_proj.0"))
            return self.linear(inner, "embed_proj.2")
        if self.layout.markov is None:
            return 0
        before = [self.ids[-1], *([] if self.layout.predicts_next else [self.ids[-1]]), *branch]
        embedded = self.weights["markov_head.markov_w1.weight"][before]
        if self.layout.markov == "gated":
            joined = torch.cat([self.hidden[slot], embedded[-1]])
            gate = self.linear(joined, "markov_head.gate_proj").sigmoid()
            return self.linear(gate * embedded[-1], "markov_head.markov_w2")
        if self.layout.markov == "rnn":
            memory = torch.zeros(RANK)
            for one, hidden in zip(embedded, self.hidden):
                joined = torch.cat([memory, one, hidden])
                gate, candidate, output = self.linear(joined, "markov_head.joint_proj").chunk(3)
                memory = gate.sigmoid() * memory + (1 - gate.sigmoid()) * candidate.tanh()
            return self.linear(output.tanh(), "markov_head.markov_w2")
        return self.linear(embedded[-1], "markov_head.markov_w2")

    def confidence(self, branch):
        """Of the row after this branch."""
        slot, reads = len(branch) + (not self.layout.predicts_next), []
        if self.layout.confidence:
            reads = [self.weights["markov_head.markov_w1.weight"][[self.ids[-1], *branch][-1]]]
        return self.linear(torch.cat([self.hidden[slot], *reads]), "confidence_head.proj").sigmoid().item()


def branch_to(draft: Draft, index: int) -> list[int]:
    """The draft tokens up to this one."""
    return [] if index < 0 else [*branch_to(draft, draft.parents[index]), draft.tokens[index].item()]


def drafts_of(monkeypatch, pair, branches=1, **params):
    """(run, (text, draft) of every round) of a sampled run whose drafts keep their rows."""
    looked, request = noted(monkeypatch, Stepwise), sampled(pair, branches, **params)
    run = collect(request, [one.record() for one in engine.pending_rounds(request, details=True)])
    assert len(looked) > 5
    return run, looked


def sampled(pair, branches=1, **params):
    """The request of such a run."""
    drafting, endless = DraftParams(branches=branches, **params), dataclasses.replace(pair, eos_ids=frozenset())
    return prepare(endless, RunSettings(PROMPT, "parallel", 3, SamplingParams(2.0), 20, seed=4, drafting=drafting))


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("name", LAYOUTS)
@torch.inference_mode()
def test_a_block_drafter_computes_what_those_who_wrote_it_say(with_part, name, branches, monkeypatch):
    pair, layout = with_part(name), LAYOUTS[name]
    order = {"drafter": "parallel", "drafting": DraftParams(branches=branches)}
    for depth in (4, 20) if branches == 1 else (4,):
        greedy = greedy_run(pair, PROMPT, num_draft_tokens=depth, **order)
        most = layout.block - (not layout.predicts_next)
        assert max(len(one.drafted) for one in greedy.rounds) == branches * min(depth, most)
    run, looked = drafts_of(monkeypatch, pair, branches)
    for text, draft in looked:
        block = ByHand(layout, pair.target, text)
        expected = [block.row(branch_to(draft, parent)) for parent in dict.fromkeys(draft.parents)]
        torch.testing.assert_close(draft.logits, torch.stack(expected), rtol=1e-3, atol=1e-3)
    kind = "mask" if name.startswith("DFlash ") else "slot"  # that sees the tokens before
    places = (
        ["row", "mask 1", "mask 2"] if kind == "mask" and layout.predicts_next else [f"{kind} {k}" for k in (1, 2, 3)]
    )
    assert {token.source for one in run.rounds for token in one.drafted} == set(places)


@pytest.mark.parametrize("name, passes", [*zip(LAYOUTS, itertools.cycle(["static", "kernels", "graphs"]))])
def test_prepared_passes_draft_what_plain_ones_do(with_part, name, passes, monkeypatch):
    """Token by token and row by row, through rounds in which drafts are kept and refused."""
    pair = with_part(name)
    fast = with_passes(pair, MAKERS[passes](pair))
    assert Role("parallel") in fast.passes.fast
    run, plain = drafts_of(monkeypatch, pair)
    monkeypatch.undo()
    other, prepared = drafts_of(monkeypatch, fast)
    assert run.token_ids == other.token_ids
    for (text, draft), (same_text, same_draft) in zip(plain, prepared, strict=True):
        assert text == same_text
        torch.testing.assert_close(draft.logits, same_draft.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.markov == "vanilla"])
def test_rows_that_gain_from_the_token_before_draft_in_one_call_what_they_do_step_by_step(
    with_part, name, branches, dtype, monkeypatch
):
    """To the bit, since both multiply by the kernels; C++ does not read embeddings in float16."""
    pair, one_call = with_part(name), DSparkHead.gain
    target, part = (copy.deepcopy(model).to(dtype) for model in (pair.target, pair.parts["parallel"]))
    pair = dataclasses.replace(pair, target=target, parts={"parallel": part})
    fast = with_passes(pair, MAKERS["kernels"](pair))
    gains: list[Gain | None] = []
    with monkeypatch.context() as patched:
        patched.setattr(DSparkHead, "gain", lambda *given: gains.append(one_call(*given)) or gains[-1])
        run, at_once = drafts_of(patched, fast, branches)
    in_one_call = part.columns is None and dtype != torch.float16
    assert [gain is not None for gain in gains] == [in_one_call] * len(at_once)
    with monkeypatch.context() as patched:
        patched.setattr(DSparkHead, "gain", lambda *given: None)
        other, stepwise = drafts_of(patched, fast, branches)
    assert run.token_ids == other.token_ids
    for (text, draft), (same_text, same_draft) in zip(at_once, stepwise, strict=True):
        assert text == same_text and draft.parents == same_draft.parents
        assert torch.equal(draft.tokens, same_draft.tokens) and torch.equal(draft.logits, same_draft.logits)
        torch.testing.assert_close(draft.probs, same_draft.probs)  # of softmax, each has its own


@pytest.mark.parametrize("name, branches", [*zip(LAYOUTS, itertools.cycle([1, 3]))])
def test_blocks_are_filled_in_on_a_device_as_by_the_host(with_part, name, branches):
    for one, other in zip(*made_twice(with_part(name), sampled(with_part(name), branches).settings), strict=True):
        assert_same_decisions(one, other)


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("name", [name for name, one in LAYOUTS.items() if one.confidence is not None])
@torch.inference_mode()
def test_a_draft_ends_before_a_token_that_is_foreseen_to_be_unlikely(with_part, name, branches, monkeypatch):
    pair, layout = with_part(name), LAYOUTS[name]

    def foreseen(text, draft):
        """What is foreseen at best after the branches of each length."""
        block, levels = ByHand(layout, pair.target, text), {}
        for branch in [branch_to(draft, index) for index in range(-1, len(draft.parents))]:
            levels.setdefault(len(branch), []).append(block.confidence(branch))
        return [max(levels[depth]) for depth in sorted(levels)]

    _, looked = drafts_of(monkeypatch, pair, branches)
    least = statistics.median(sure for text, draft in looked for sure in foreseen(text, draft)[:-1])
    _, looked = drafts_of(monkeypatch, pair, branches, confidence=least)
    for text, draft in looked:
        *before, last = foreseen(text, draft)
        assert all(sure >= least - 1e-4 for sure in before)
        if draft.confidence is None:
            assert len(before) == 3 or len(text) + len(before) == len(PROMPT) + 19
        else:
            assert draft.confidence == pytest.approx(last, abs=1e-4) and draft.confidence < least
    assert len({len(draft.parents) for _, draft in looked}) > 1


@pytest.mark.parametrize("name", ["DFlash z-lab", "DSpark DeepSpec", "DSpark speculators"])
@torch.inference_mode()
def test_neighbouring_readings_are_told_and_tried(with_part, name, monkeypatch):
    pair, layout = with_part(name), LAYOUTS[name]
    part = pair.parts["parallel"]
    reading = {"format": name.split()[0], "hidden_states": list(layout.reads(3)), "block_size": layout.block}
    reading["depths"] = layout.block - (not layout.predicts_next)
    assert part.facts() == reading | {"slots_predict": "next" if layout.predicts_next else "own"}
    others = part.variants()
    slots = f"each mask predicts the token {'at' if layout.predicts_next else 'after'} its position"
    meant = {
        "hidden states one layer lower": {"reads": lambda layers: [one - 1 for one in layout.reads(layers)]},
        "hidden states one layer higher": {"reads": lambda layers: [one + 1 for one in layout.reads(layers)]},
        slots: {"predicts_next": not layout.predicts_next},
    }
    assert others.keys() == meant.keys()
    for other, neighbour in others.items():
        if not all(0 <= one <= 3 for one in neighbour.feature_layers):
            continue  # below the embeddings or above the last layer
        _, looked = drafts_of(monkeypatch, dataclasses.replace(pair, parts={"parallel": neighbour}))
        text, draft = looked[-1]
        block = ByHand(dataclasses.replace(layout, **meant[other]), pair.target, text)
        torch.testing.assert_close(draft.logits[0], block.row([]), rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_transformers_own_drafter_is_computed_as_transformers_does(tmp_path):
    target = tiny_model("qwen3", layers=3)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    kinds = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"], "target_layer_ids": [0, 2]}
    sizes |= {"head_dim": 12, "num_hidden_layers": 2, "vocab_size": 128, "mask_token_id": 126}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assistant = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**sizes, **kinds, block_size=8)).eval()
        features, block = torch.randn(1, 11, 96), torch.randn(1, 8, 48)
    assistant.save_pretrained(tmp_path)
    part = DFlashHead.load(PartFiles.at(tmp_path), target)
    cache = DFlashCache(config=assistant.config)
    cache.set_previous_accepted_tokens(11)
    expected = assistant(block, features, position_ids=torch.arange(19)[None], cache=cache).last_hidden_state
    torch.testing.assert_close(
        part(block, functional.pad(features, (0, 0, 0, 8)), torch.arange(19)[None], 19, DynamicCache()),
        expected,
        rtol=1e-4,
        atol=1e-4,
    )


def blocks(mask, layers):
    return {"dflash_config": {"mask_token_id": mask, "target_layer_ids": layers}}


@pytest.mark.parametrize(
    "name, changes, edit, sentence",
    [
        ("DFlash z-lab", {"num_target_layers": 36}, None, "another target: num_hidden_layers is 36 there and 3"),
        ("DFlash z-lab", {"hidden_size": 64}, None, "another target: hidden_size is 64 there and 48"),
        ("DFlash z-lab", {"vocab_size": 99}, None, "another target: vocab_size"),
        ("DFlash z-lab", {"dflash_config": {"target_layer_ids": [0, 1]}}, None, "lacks mask_token_id"),
        ("DFlash z-lab", {"dflash_config": {"mask_token_id": 9}}, None, "lacks target_layer_ids"),
        ("DFlash z-lab", blocks(9, [0, 3]), None, "hidden states 1, 4"),
        ("DFlash z-lab", blocks(999, [0, 2]), None, "mask_token_id is 999"),
        ("DFlash z-lab", {"block_size": 1}, None, "Invalid block_size .*: 1"),
        ("DFlash z-lab, sliding", {"sliding_window": None}, None, "lacks swa_window_size"),
        ("DFlash z-lab", {"logit_scale": 0.2}, None, "of an unknown kind: logit_scale"),
        ("DFlash z-lab", {}, {"layers.0.self_attn.attention_sink_bias": torch.zeros(4)}, "attention_sink"),
        ("DFlash speculators", {}, {"d2t": torch.zeros(25).long() + 120}, "do not rise"),
        ("DFlash speculators", {}, {"fc.weight": torch.zeros(24, 128)}, "reads 128 numbers from the hidden"),
        ("DSpark DeepSpec", {"markov_head_type": "lstm"}, None, "of an unknown kind: lstm"),
        ("DSpark DeepSpec", {"markov_rank": 4}, None, "markov_head.markov_w1.weight in"),
    ],
)
def test_what_is_wrong_with_a_block_drafter_is_said(target, name, changes, edit, sentence, tmp_path):
    model, layout = tiny_model("qwen3", layers=3), LAYOUTS[name]
    write_block(tmp_path, model, layout, weights_of(layout, model) | (edit or {}), **changes)
    with refused("draft", sentence) as caught:
        loaded(target, draft=tmp_path)
    assert str(tmp_path) in str(caught.value)
