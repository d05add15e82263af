"""What the recipes write is what the programs that read these formats ask for."""

import json

import pytest
import torch
from published_heads import MEDUSA, write_medusa
from refusal import refused
from tiny import RECIPES, save_model, tiny_model
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specviz.parts.part_files import PartFiles
from specviz.parts.published import MAPS
from specviz.records.errors import SpecvizError
from specviz.training.dspark import DSparkRecipe
from specviz.training.heads import Eagle3Recipe, MedusaRecipe, MtpRecipe
from specviz.training.parts import write_part


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Read from a folder, whose name the files mention."""
    folder = save_model(tmp_path_factory.mktemp("model") / "tiny", tiny_model("llama"))
    return type(tiny_model("llama")).from_pretrained(folder, dtype=torch.float32)


def trained(recipe, target, folder):
    """A part after a step in which every weight moves, in its files."""
    student = recipe(target)
    torch.manual_seed(0)
    for weight in student.student.parameters():
        weight.data += 0.1 * torch.randn(weight.shape)
    student.save(folder)
    return student, PartFiles.at(folder)


def vllm_medusa(settings):
    """The weights that vLLM's Medusa has for a configuration (model_executor/models/medusa.py), and what its loader
    calls those of a file; the loader passes over any other name in silence."""
    renamed = {}
    for key, value in settings.items():
        kind = "num" in key and next((kind for kind in ("heads", "layers") if kind in key), None)
        renamed[{"heads": "num_heads", "layers": "num_hidden_layers"}.get(kind, key)] = value
    d, rows = renamed["hidden_size"], renamed["truncated_vocab_size"]
    assert rows == renamed["vocab_size"]  # otherwise it needs a map of tokens
    shapes = {"lm_head.weight": (rows, d)} if renamed["original_lm_head"] else {}
    for head in range(renamed["num_heads"]):
        for layer in range(renamed["num_hidden_layers"]):
            shapes[f"blocks.{head}.layers.{layer}.weight"] = (d, d)
            if renamed["medusa_fc_bias"]:
                shapes[f"blocks.{head}.layers.{layer}.bias"] = (d,)
    return shapes, lambda name: "lm_head.weight" if name == "lm_heads.0.weight" else name


def speculators_mtp(settings):
    """As `vllm_medusa`, of speculators' MTPDraftModel (models/mtp): one layer of Qwen 3, for which a file must have all
    weights and no others."""
    assert (settings["speculators_model_type"], settings["num_nextn_predict_layers"]) == ("mtp", 1)
    proposals = settings["speculators_config"]
    assert proposals["proposal_methods"][0]["speculative_tokens"] > 0 and proposals["verifier"]["architectures"]
    layer = settings["transformer_layer_config"]
    config = type(AutoConfig.for_model(layer["model_type"]))(**layer)
    assert config.model_type == "qwen3"
    d = config.hidden_size
    shapes = {name: tuple(weight.shape) for name, weight in Qwen3DecoderLayer(config, 0).state_dict().items()}
    shapes |= {f"{name}_layernorm.weight": (d,) for name in ("token", "hidden", "final")}
    shapes["input_proj.weight"] = (d, 2 * d)
    return {f"mtp_layers.0.{name}": shape for name, shape in shapes.items()}, lambda name: name


def eagle3(settings):
    """As `vllm_medusa`, of vLLM's and of SGLang's EAGLE-3 (llama_eagle3.py of either): the same weights, named as
    the files are. vLLM refuses an unknown name, and ``d2t`` where it has no place for it; SGLang passes over it."""
    config = type(AutoConfig.for_model(settings["model_type"]))(**settings)
    assert (config.model_type, settings["architectures"]) == ("llama", ["LlamaForCausalLMEagle3"])
    # The numbers of hidden states for vLLM, of the layers whose outputs they are for SGLang, which counts from there.
    states = settings["eagle_aux_hidden_state_layer_ids"]
    assert [layer + 1 for layer in settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"]] == states
    assert len(states) == 3 and all(settings[f"norm_{place}"] for place in ("before_fc", "before_residual", "output"))
    # What vLLM takes from speculators' configuration instead, if it is given as the model to serve.
    assert settings["transformer_layer_config"].items() <= settings.items()
    d, rows, fused = config.hidden_size, settings["draft_vocab_size"], 3 * settings["target_hidden_size"]
    layer = LlamaDecoderLayer(config, 0)
    for name in ("q_proj", "k_proj", "v_proj"):
        outputs = getattr(layer.self_attn, name).out_features
        setattr(layer.self_attn, name, torch.nn.Linear(2 * d, outputs, bias=False))
    shapes = {f"layers.0.{name}": tuple(weight.shape) for name, weight in layer.state_dict().items()}
    shapes |= {"layers.0.hidden_norm.weight": (d,), "norm.weight": (d,), "input_norm.weight": (fused,)}
    shapes |= {"fc.weight": (d, fused), "lm_head.weight": (rows, d)}
    assert rows == config.vocab_size  # otherwise they need a map of tokens
    return shapes, lambda name: name


def dspark(settings):
    """As `vllm_medusa`, of vLLM's and SGLang's DSpark (qwen3_dspark.py of vLLM): embeddings and output head are the
    target's unless the drafter is narrower. SGLang refuses what speculators wrote."""
    assert "speculators_model_type" not in settings
    assert (settings["architectures"], settings["model_type"]) == (["Qwen3DSparkModel"], "qwen3")
    config = type(AutoConfig.for_model("qwen3"))(**settings)
    d, vocab, rank = config.hidden_size, config.vocab_size, settings["markov_rank"]
    layers, states = settings["num_target_layers"], [layer + 1 for layer in settings["target_layer_ids"]]
    # vLLM hands out what enters a layer, and never what the last one leaves.
    assert min(states) > 0 and max(states) < layers and {*settings["layer_types"]} == {"full_attention"}
    assert settings["markov_head_type"] in ("vanilla", "gated", "rnn") and settings["enable_confidence_head"]
    assert 0 <= settings["mask_token_id"] < vocab
    shapes = {
        f"layers.{index}.{name}": tuple(weight.shape)
        for index in range(config.num_hidden_layers)
        for name, weight in Qwen3DecoderLayer(config, index).state_dict().items()
    }
    shapes |= {"fc.weight": (d, len(states) * settings["target_hidden_size"]), "hidden_norm.weight": (d,)}
    shapes |= {f"markov_head.markov_w{part}.weight": (vocab, rank) for part in (1, 2)} | {"norm.weight": (d,)}
    read = d + rank * settings["confidence_head_with_markov"]
    shapes |= {"confidence_head.proj.weight": (1, read), "confidence_head.proj.bias": (1,)}
    own = ("embed_tokens.weight", "lm_head.weight") if d != settings["target_hidden_size"] else ()
    return shapes | dict.fromkeys(own, (vocab, d)), lambda name: name


def narrow_dspark(target):
    return DSparkRecipe(target, tiny_model("llama", hidden_size=32, layers=1, intermediate_size=48, head_dim=8))


LOADERS = [(MedusaRecipe, vllm_medusa), (MtpRecipe, speculators_mtp), (Eagle3Recipe, eagle3)]
LOADERS += [(DSparkRecipe, dspark), (narrow_dspark, dspark)]


@pytest.mark.parametrize("recipe, loader", LOADERS)
def test_files_have_what_their_loaders_ask_for_and_nothing_else(recipe, loader, target, tmp_path):
    _, files = trained(recipe, target, tmp_path)
    shapes, named = loader(json.loads((tmp_path / "config.json").read_text()))
    assert {named(name): shape for name, shape in files.shapes.items()} == shapes
    assert {tensor.dtype for tensor in files.tensors().values()} == {torch.bfloat16}


def test_a_head_that_is_trained_on_loses_maps_of_a_vocabulary_that_is_the_target_s(target, tmp_path):
    """specviz wrote them once, and speculators may: vLLM loads none of the weights beside them."""
    recipe, vocab = Eagle3Recipe(target), target.config.vocab_size
    maps = {"d2t": torch.zeros(vocab, dtype=torch.long), "t2d": torch.ones(vocab, dtype=torch.bool)}
    write_part(tmp_path / "start", recipe.settings, recipe.held | maps)
    Eagle3Recipe(target, tmp_path / "start").save(tmp_path / "end")
    assert PartFiles.at(tmp_path / "start").shapes.keys() - PartFiles.at(tmp_path / "end").shapes.keys() == MAPS & {
        *maps
    }


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_what_was_trained_is_what_is_read_again(recipe, architecture, tmp_path):
    """For targets of every family: their norms, their limits and their layers differ."""
    target = tiny_model(architecture)
    student, _ = trained(recipe, target, tmp_path)
    ids = torch.randint(100, (2, 24))
    learnt, read, new = (
        torch.cat([drafted.flatten() for drafted, _ in one.drafts(ids, None)])
        for one in (student, recipe(target, tmp_path), recipe(target))
    )
    # They are written in bfloat16.
    assert (read - learnt).norm() < 0.05 * (new - learnt).norm()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_target_whose_embeddings_are_narrower_than_its_states_is_refused(recipe):
    target = tiny_model("llama")
    target.set_input_embeddings(torch.nn.Embedding(128, 24))
    with refused("drafter", "choose another drafter"):
        recipe(target)


def test_what_is_too_large_for_one_file_is_split(tmp_path):
    tensors = {name: torch.randn(1500, 2000) for name in ("a.weight", "b.weight")}
    write_part(tmp_path, {}, tensors)
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) == 2 and all(file.stat().st_size < 9_000_000 for file in files)
    read = PartFiles.at(tmp_path).tensors()
    assert all(torch.equal(read[name], tensor.bfloat16()) for name, tensor in tensors.items())


@torch.no_grad()
def test_new_medusa_heads_say_what_the_target_says(target):
    ids = torch.randint(100, (2, 24))
    logits = target(ids).logits
    for drafted, _ in MedusaRecipe(target).drafts(ids, None):
        torch.testing.assert_close(drafted, logits[:, : drafted.shape[1]], rtol=0.05, atol=0.05)  # in bfloat16


@pytest.mark.parametrize("layout", MEDUSA)
def test_medusa_heads_of_any_layout_learn_on_in_it(layout, target, tmp_path):
    write_medusa(tmp_path / "start", target, layout)
    if "frequent" in layout:
        with pytest.raises(SpecvizError, match="some of the target's tokens"):
            MedusaRecipe(target, tmp_path / "start")
        return
    recipe = MedusaRecipe(target, tmp_path / "start")
    recipe.loss(torch.randint(100, (2, 24)), 0).backward()
    assert all(weight.grad.abs().max() > 0 for weight in recipe.student.parameters())
    recipe.save(tmp_path / "end")
    assert PartFiles.at(tmp_path / "end").shapes == PartFiles.at(tmp_path / "start").shapes
