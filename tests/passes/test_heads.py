"""Trained heads: reading in pieces or at once is one thing, and a head's files say which target it belongs to."""

import json

import pytest
import torch
from huggingface_hub import constants
from refusal import refused
from safetensors.torch import load_file, save_file
from tiny import save_model, tiny_model
from transformers import AutoModelForCausalLM

from specviz.parts.head_files import fingerprint, load, save
from specviz.parts.head_passes import HeadModel, read_masks
from specviz.parts.heads import EagleConfig, EagleHead, MedusaConfig, MedusaHeads, ParallelConfig, ParallelHead
from specviz.passes.cached_model import CachedModel, tree_view
from specviz.passes.devices import Stopwatch
from specviz.records.errors import SpecvizError

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def stirred(module, seed=0):
    """The module with weights that all matter: as built, some of its branches add nothing yet."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return module.eval().requires_grad_(False)


def reading(head, target):
    """A head reading a text on this target; its `features` are its states."""
    return CachedModel(HeadModel(head, target), Stopwatch(target.device), (-1,))


@pytest.fixture(scope="module")
def model():
    target = tiny_model("llama", layers=3)
    return HeadModel(stirred(EagleHead(EagleConfig.of(target))), target)


def inputs(n, d=48, seed=1):
    """Features and tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator), torch.randint(128, (n,), generator=generator)


def fresh(model):
    return CachedModel(model, Stopwatch(torch.device("cpu")), (-1,))


def states(reader, features, tokens, *view):
    reader.forward(tokens, 1, *view, inputs=features)
    return reader.features


#: A tree over six tokens: parent of each, −1 for the text.
PARENTS = (-1, -1, 0, 0, 1, 3)


def path_to(index):
    return [*path_to(PARENTS[index]), index] if index >= 0 else []


def test_a_tree_in_one_pass_equals_its_paths_and_the_kept_one_reads_on_as_a_chain(model):
    (text, text_tokens), (features, tokens) = inputs(5), inputs(7, seed=2)
    reader = fresh(model)
    states(reader, text, text_tokens)
    tree = states(reader, features[:6], tokens[:6], *tree_view(PARENTS, 5, 0))
    for index in range(len(PARENTS)):
        path = path_to(index)
        alone = states(fresh(model), torch.cat([text, features[path]]), torch.cat([text_tokens, tokens[path]]))
        torch.testing.assert_close(tree[index], alone[-1], **CLOSE)
    reader.keep(5, path)
    assert reader.length == 5 + len(path)
    chain = [*path, 6]
    alone = states(fresh(model), torch.cat([text, features[chain]]), torch.cat([text_tokens, tokens[chain]]))
    torch.testing.assert_close(states(reader, features[6:], tokens[6:]), alone[-1:], **CLOSE)


def test_each_medusa_head_sees_the_drawn_token_and_no_other_row():
    heads = stirred(MedusaHeads(MedusaConfig(48, 3, (2,))))
    features, embeddings = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(1))
    both = heads(features, embeddings)
    assert both.shape == (5, 3, 48)
    torch.testing.assert_close(heads(features[3:4], embeddings[3:4])[0], both[3], **CLOSE)
    other = heads(features, embeddings.roll(1, 0))
    assert all(not torch.allclose(other[:, k], both[:, k], atol=1e-3) for k in range(3))


@pytest.mark.parametrize("architecture", ["gemma3", "gpt2"])
def test_heads_fit_every_architecture_and_come_back_from_their_files(architecture, tmp_path):
    target = tiny_model(architecture, layers=3)
    eagle, medusa = stirred(EagleHead(EagleConfig.of(target))), stirred(MedusaHeads(MedusaConfig.of(target)))
    parallel = stirred(ParallelHead(ParallelConfig.of(target)))
    assert eagle.feature_layers == (1, 2, 3) and medusa.feature_layers == (3,)
    save(eagle, tmp_path / "eagle", fingerprint(target))
    save(medusa, tmp_path / "medusa", fingerprint(target))
    save(parallel, tmp_path / "parallel", fingerprint(target))
    loaded, heads = load(EagleHead, tmp_path / "eagle", target), load(MedusaHeads, tmp_path / "medusa", target)
    assert not loaded.training and loaded.dtype == target.dtype

    ids = torch.arange(1, 11)[None]
    with torch.inference_mode():
        states = target(input_ids=ids, output_hidden_states=True).hidden_states
        embeddings = target.get_input_embeddings()(ids[0, 1:])
        fused = loaded.fuse(torch.cat([states[layer][0, :-1] for layer in loaded.feature_layers], -1))
        logits = reading(loaded, target).forward(ids[0, 1:], 9, inputs=fused)
        ahead = target.get_output_embeddings()(heads(states[-1][0, :-1], embeddings))
        head = load(ParallelHead, tmp_path / "parallel", target)
        features = torch.cat([states[layer][0, :-1] for layer in head.feature_layers], -1)
        masked = read_masks(reading(head, target), features, ids[0, 1:], 8)
    assert logits.shape == (9, target.config.vocab_size) and logits.isfinite().all()
    assert ahead.shape == (9, 4, target.config.vocab_size) and ahead.isfinite().all()
    assert masked.shape == (8, target.config.vocab_size) and masked.isfinite().all()
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, eagle.state_dict()[name].bfloat16().float())


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def uneven(model):
    """The model with weights that half precision has to round."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand(parameter.shape, generator=generator) * 0.123)
    return model


@pytest.mark.parametrize("architecture, saved_in", [*zip(["gpt2", "llama", "gpt2"], DTYPES)])
def test_one_checkpoint_has_one_fingerprint_in_every_precision(architecture, saved_in, tmp_path):
    target = uneven(tiny_model(architecture, layers=3)).to(saved_in)
    target.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loads = [AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype) for dtype in DTYPES]
    assert {fingerprint(loaded) for loaded in loads} == {fingerprint(target)}


@pytest.mark.parametrize("renamed", [lambda name: f"language_model.{name}", lambda name: name.removeprefix("model.")])
def test_the_files_may_name_weights_in_their_own_way(renamed, tmp_path):
    target = uneven(tiny_model("llama"))
    save_model(tmp_path, target)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)
    files = load_file(tmp_path / "model.safetensors")
    save_file({renamed(name): weight for name, weight in files.items()}, tmp_path / "model.safetensors")
    assert fingerprint(loaded) == fingerprint(target)


def test_tied_embeddings_are_found_under_the_heads_name(tmp_path):
    target = uneven(tiny_model("llama", tie_word_embeddings=True))
    save_model(tmp_path, target)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)
    files = load_file(tmp_path / "model.safetensors")
    files["lm_head.weight"] = files.pop("model.embed_tokens.weight")
    save_file(files, tmp_path / "model.safetensors")
    assert fingerprint(loaded) == fingerprint(target)


def test_a_model_from_the_hub_is_fingerprinted_by_its_files_in_the_cache(tmp_path, monkeypatch):
    commit = "0" * 40
    snapshot = tmp_path / "models--someone--model" / "snapshots" / commit
    target = uneven(tiny_model("llama"))
    save_model(snapshot, target)
    loaded = AutoModelForCausalLM.from_pretrained(snapshot, dtype=torch.float16)
    loaded.name_or_path, loaded.config._commit_hash = "someone/model", commit
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert fingerprint(loaded) == fingerprint(target)


def test_weights_changed_since_they_were_loaded_count_as_they_are(tmp_path):
    save_model(tmp_path, uneven(tiny_model("llama")))
    loads = [AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16) for _ in range(2)]
    with torch.no_grad():
        loads[0].model.norm.weight[0] += 0.5
    assert fingerprint(loads[0]) != fingerprint(loads[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checkpoint_keeps_its_trained_part_in_every_precision_and_no_other_gets_it(dtype, tmp_path):
    target = uneven(tiny_model("llama"))
    save_model(tmp_path / "own", target)
    save_model(tmp_path / "other", uneven(tiny_model("llama", seed=8)))
    save(stirred(EagleHead(EagleConfig.of(target))), tmp_path / "eagle", fingerprint(target))
    own, other = (AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=dtype) for name in ("own", "other"))
    assert load(EagleHead, tmp_path / "eagle", own).dtype == dtype
    assert "another target" in refusal(EagleHead, tmp_path / "eagle", other)


def test_another_target_has_another_fingerprint():
    first = tiny_model("llama")
    names = {fingerprint(tiny_model("llama", seed=seed)) for seed in (3, 4)}
    names |= {fingerprint(tiny_model(*model)) for model in (("qwen3",), ("gpt2",))}
    names.add(fingerprint(tiny_model("llama", layers=3)))
    with torch.no_grad():
        next(norm for name, norm in first.named_parameters() if "norm" in name)[0] += 0.5
    assert len(names | {fingerprint(first)}) == 6


@pytest.fixture
def shipped(tmp_path):
    """A target, and a folder with an EAGLE head for it."""
    target = tiny_model("llama")
    save(stirred(EagleHead(EagleConfig.of(target))), tmp_path / "eagle", fingerprint(target))
    return target, tmp_path / "eagle"


def refusal(kind, folder, target):
    with refused("drafter") as caught:
        load(kind, folder, target)
    return caught.value.message


def test_heads_of_another_target_are_refused_with_the_command_that_trains_some(shipped):
    _, folder = shipped
    sentence = refusal(EagleHead, folder, tiny_model("llama", seed=8))
    assert "another target" in sentence and "python -m specviz.training eagle --target" in sentence


@pytest.mark.parametrize(
    "damage", ["no weights", "cut", "no json", "no fingerprint", "other sizes", "a missing weight"]
)
def test_damaged_heads_are_refused(shipped, damage):
    target, folder = shipped
    config, weights = folder / "config.json", folder / "model.safetensors"
    if damage == "no weights":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "no json":
        config.write_text("{")
    elif damage == "no fingerprint":
        config.write_text(json.dumps({"kind": "eagle"}))
    elif damage == "other sizes":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"intermediate_size": 64 * 9}))
    else:
        fewer = EagleHead(EagleConfig.of(target))
        del fewer.down
        save(stirred(fewer), folder, fingerprint(target))
    sentence = refusal(EagleHead, folder, target)
    assert "damaged" in sentence and "python -m specviz.training eagle --target" in sentence


def test_a_head_too_large_for_one_file_is_split(tmp_path):
    target = tiny_model("llama", hidden_size=640, num_attention_heads=10, layers=1)
    save(EagleHead(EagleConfig.of(target)), tmp_path, fingerprint(target))
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) > 1 and all(file.stat().st_size < 9_000_000 for file in files)
    assert load(EagleHead, tmp_path, target).sizes == EagleConfig.of(target)


def test_a_target_whose_embeddings_are_narrower_than_its_states_is_refused():
    target = tiny_model("llama")
    target.set_input_embeddings(torch.nn.Embedding(128, 24))
    with pytest.raises(SpecvizError, match="choose another drafter"):
        EagleConfig.of(target)
