"""The recipe of DSpark heads: it learns from what drafting computes, and writes what servers load."""

import json

import pytest
import torch
from refusal import refused
from safetensors.torch import load_file
from tiny import tiny_model

from specviz.models.trained_parts import load_part
from specviz.parts.dflash import BlockModel, read_block
from specviz.parts.part_files import PartFiles
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.records.errors import SpecvizError
from specviz.training.dspark import DSparkRecipe
from specviz.training.loop import overlap


@pytest.fixture(scope="module")
def target():
    return tiny_model("llama").requires_grad_(False)


@pytest.fixture(scope="module")
def draft():
    return tiny_model("llama", hidden_size=32, layers=1, intermediate_size=48, head_dim=8, seed=1)


@pytest.fixture(params=["wide", "narrow"])
def recipe(request, target, draft):
    made = DSparkRecipe(target, draft if request.param == "narrow" else None)
    with torch.no_grad():
        for weight in made.student.parameters():
            if not weight.any():
                weight.normal_(std=0.1)
    return made


@torch.no_grad()
def test_the_rows_that_it_learns_from_are_what_drafting_computes(recipe, target):
    """At every depth, whatever the anchor: no slot sees the text after its own block's anchor."""
    ids = torch.randint(128, (1, 40))
    head, size = recipe.student, recipe.student.sizes.block_size
    anchors = 1 + torch.randperm(40 - size, generator=torch.Generator().manual_seed(3))
    features, every = recipe.target.read(ids).features[0], [list(one) for one in recipe.rows(ids, 3)]
    wanted = target(ids).logits[0]
    for place, anchor in enumerate(anchors[:5].tolist()):
        reader = CachedModel(BlockModel(head, target), Stopwatch(target.device), (-1,))
        rows, hidden = read_block(reader, features[:anchor], ids[0, 1 : anchor + 1]), reader.features
        memory = head.first_memory(ids[0, anchor : anchor + 1], hidden)
        for depth in range(size):
            before = ids[0, anchor + depth : anchor + depth + 1]
            logits, memory = head.corrected(depth, rows[depth], before, hidden[depth], memory)
            torch.testing.assert_close(every[depth][0][place], logits[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(every[depth][1][place], wanted[anchor + depth])
            torch.testing.assert_close(every[depth][2][place], head.foreseen(before, hidden[depth])[0])


def test_its_confidence_learns_how_much_of_the_targets_distribution_it_covers(target):
    recipe, ids = DSparkRecipe(target), torch.randint(128, (2, 64))
    proj = recipe.student.confidence_head["proj"]
    optimiser = torch.optim.Adam(proj.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        recipe.loss(ids, 0).backward()
        optimiser.step()
    with torch.no_grad():
        for logits, wanted, foreseen in recipe.rows(ids, 0):
            assert (foreseen - overlap(logits, wanted)).abs().mean() < 0.1


def test_a_head_from_a_draft_model_knows_the_tokens_before(target, draft):
    """Trained features say which token they belong to; here those of a target that only looks them up do."""
    plain = tiny_model("llama").requires_grad_(False)
    for layer in plain.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    head = DSparkRecipe(plain, draft).student
    ids = torch.arange(20, 30)[None]
    features = torch.cat([plain(ids, output_hidden_states=True).hidden_states[i] for i in head.feature_layers], -1)
    mine, theirs = head.fc(features)[0], draft.get_input_embeddings()(ids)[0]
    assert torch.cosine_similarity(mine, theirs, dim=-1).mean() > 0.5


# What servers ask of a folder, as their loaders do


def _held(recipe, folder):
    recipe.save(folder)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def _layers(config):
    """Tensors of the layers by the loaders' own names, in which projections of the same input are joined."""
    d, head, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    for index in range(config["num_hidden_layers"]):
        layer = f"layers.{index}"
        yield f"{layer}.self_attn.qkv_proj.weight", (q + 2 * kv, d)
        yield f"{layer}.self_attn.o_proj.weight", (d, q)
        yield f"{layer}.mlp.gate_up_proj.weight", (2 * inner, d)
        yield f"{layer}.mlp.down_proj.weight", (d, inner)
        for name, size in (("input_layernorm", d), ("post_attention_layernorm", d)):
            yield f"{layer}.{name}.weight", (size,)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            yield f"{layer}.{name}.weight", (head,)


def _joined(tensors):
    """The same tensors by those names; each projection has to be there."""
    stacks = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    found = {}
    for name, tensor in tensors.items():
        stack = next((stack for stack, parts in stacks.items() if any(f".{part}." in name for part in parts)), None)
        if stack is None:
            found[name] = tuple(tensor.shape)
            continue
        part = next(part for part in stacks[stack] if f".{part}." in name)
        joined = name.replace(part, stack)
        rows, columns = found.get(joined, (0, tensor.shape[1]))
        assert columns == tensor.shape[1]
        found[joined] = (rows + tensor.shape[0], columns)
    return found


def test_vllm_finds_every_tensor_that_it_needs(recipe, target, tmp_path):
    """Its loader of Qwen3DSparkModel: sizes from the configuration, fc as wide as target_hidden_size says."""
    config, tensors = _held(recipe, tmp_path)
    d, vocab, rank = config["hidden_size"], config["vocab_size"], config["markov_rank"]
    assert config["architectures"] == ["Qwen3DSparkModel"] and config["model_type"] == "qwen3"
    states = [layer + 1 for layer in config["target_layer_ids"]]
    # It hands out what enters a layer, and never what the last one leaves.
    assert states == list(recipe.student.feature_layers) and max(states) < target.config.num_hidden_layers
    wanted = dict(_layers(config)) | {
        "fc.weight": (d, len(states) * config["target_hidden_size"]),
        "hidden_norm.weight": (d,),
        "norm.weight": (d,),
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (vocab, rank),
        "confidence_head.proj.weight": (1, d + rank * config["confidence_head_with_markov"]),
        "confidence_head.proj.bias": (1,),
    }
    own = {name: (vocab, d) for name in ("embed_tokens.weight", "lm_head.weight") if name in tensors}
    # Without its own it takes the target's, which must be as wide.
    assert len(own) == 2 or (not own and d == target.config.hidden_size)
    assert config["enable_confidence_head"] and vocab == target.config.vocab_size
    assert _joined(tensors) == wanted | own


def test_sglang_finds_every_tensor_that_it_needs(target, tmp_path):
    """Its loader takes embeddings and output head from the target, and refuses what speculators wrote."""
    config, tensors = _held(DSparkRecipe(target), tmp_path)
    assert "speculators_model_type" not in config
    assert config["markov_rank"] > 0 and config["markov_head_type"] in ("vanilla", "gated", "rnn")
    assert 0 <= config["mask_token_id"] < target.config.vocab_size
    assert config["hidden_size"] == target.config.hidden_size and set(config["layer_types"]) == {"full_attention"}
    layers = config["num_target_layers"]
    assert layers == target.config.num_hidden_layers and all(0 <= one < layers for one in config["target_layer_ids"])
    assert tensors["fc.weight"].shape[1] == len(config["target_layer_ids"]) * config["hidden_size"]


def test_a_head_is_read_as_it_was_written(recipe, target, tmp_path):
    recipe.save(tmp_path)
    read = load_part("parallel", tmp_path, target)
    assert type(read) is type(recipe.student) and read.sizes == recipe.student.sizes
    for name, weight in recipe.student.state_dict().items():
        torch.testing.assert_close(read.state_dict()[name].float(), weight, atol=0, rtol=2**-7)
    assert PartFiles.at(tmp_path).setting("block_size") == 8


def test_a_draft_model_of_another_kind_is_refused_in_a_sentence(target):
    with pytest.raises(SpecvizError, match="Llama without biases"):
        DSparkRecipe(target, tiny_model("gpt2"))


@pytest.mark.parametrize(
    "settings",
    [{"sample_from_anchor": False}, {"is_causal": True}, {"dflash_config": {"output_multiplier": 2.0}}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_head_whose_blocks_mean_something_else_is_not_taught_wrongly(target, tmp_path, settings):
    DSparkRecipe(target).save(tmp_path)
    assert DSparkRecipe(target, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with refused("start", "in another way than the recipe teaches"):
        DSparkRecipe(target, tmp_path)
