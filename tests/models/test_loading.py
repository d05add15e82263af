"""Pairs load from folders and from the Hub's cache, and what cannot run is refused in a sentence at its field."""

import gc
import json
import math
import os
import pathlib
import shutil
import sys
import types
import weakref

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub import errors as hub
from refusal import refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import (
    ARCHITECTURES,
    END,
    byte_tokenizer,
    edit_config,
    save_model,
    save_pair,
    tiny_model,
    tiny_pair,
)
from transformers import BertConfig, T5Config, ViTConfig, modeling_utils
from transformers.models.llama.modeling_llama import LlamaModel
from transformers.utils import logging as transformers_logging

from specviz.decoding.request import prepare
from specviz.models import pass_timer, placement, sources
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair, logit_width
from specviz.models.pass_timer import SHOWN_WIDTHS, settle_threads, time_passes
from specviz.models.weights import unmapped
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings, SamplingParams


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of a target and its draft; tests copy what they damage."""
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def folder(saved, tmp_path):
    """A private copy of the target's folder."""
    return pathlib.Path(shutil.copytree(saved[0], tmp_path / "copy"))


def refusal(field, *args, **settings):
    with refused(field) as caught:
        load_pair(*args, **settings)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message
    return message


# ------------------------------------------------------------------------------------------------------- loading


@pytest.fixture(scope="module")
def automatic():
    """The embedded pair as `load_pair()` gives it on a CPU, and the progress it told."""
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources.HfApi, "model_info", lambda *a, **k: pytest.fail("asked the Hub"))
        return load_pair(device="cpu", progress=lambda *step: steps.append(step)), steps


def test_the_embedded_pair_needs_no_name_and_no_network(automatic):
    pair, _ = automatic
    assert pair.vocab_size == 4096 and pair.context_length == 1024 and pair.eos_ids == {0}
    assert pair.target.dtype == pair.draft.dtype == pair.dtype
    assert pair.info().target_parameters > pair.info().draft_parameters > 1_000_000
    assert not pair.target.training and not pair.draft.training


def test_progress_rises_from_nothing_to_ready_in_sentences(automatic):
    fractions, sentences = zip(*automatic[1])
    assert list(fractions) == sorted(fractions) and fractions[0] == 0 and fractions[-1] == 1
    assert all(sentence.endswith(".") for sentence in sentences)


def test_the_cost_of_wide_passes_and_the_threads_that_suit_are_measured(automatic):
    pair, _ = automatic
    assert sorted(pair.passes.seconds_by_width) == sorted(SHOWN_WIDTHS)
    assert all(seconds > 0 for seconds in pair.passes.seconds_by_width.values())
    assert pair.passes.threads == torch.get_num_threads() >= 1


@pytest.mark.parametrize(
    "cores, most, each, threads",
    [(1, 512 << 20, 1, 1), (2, 512 << 20, 1, 1), (4, 512 << 20, 1, 3), (4, 512 << 20, 32 << 20, 1), (2, 0, 1, 2)],
)
def test_size_decides_on_threads_and_a_small_model_leaves_a_core_free(cores, most, each, threads, monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(pass_timer, "_ALL_THREADS", cores)
    monkeypatch.setattr(pass_timer, "_SMALL_BYTES", most)
    monkeypatch.setattr(pass_timer, "_BYTES_PER_THREAD", each)
    monkeypatch.setattr(pass_timer, "time_passes", lambda *a, **k: pytest.fail("timed"))
    try:
        assert settle_threads(tiny_model("llama")) == torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_embedded_pair_has_its_trained_parts_in_every_precision(dtype):
    pair = load_pair(dtype=dtype, device="cpu")
    assert set(pair.parts) == {"medusa", "eagle", "mtp", "parallel"} and not pair.flaws


@pytest.mark.parametrize("multiplies, dtype", [(True, torch.bfloat16), (False, torch.float32)])
@pytest.mark.parametrize("stored", ["float32", "float16"])
def test_the_processor_decides_on_auto_dtype_and_each_model_is_read_once(
    folder, stored, multiplies, dtype, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: multiplies)
    read, loaded = [], sources.AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        sources.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: read.append(k["dtype"]) or loaded(*a, **k)
    )
    edit_config(folder, dtype=stored)
    assert load_pair(folder, device="cpu").dtype == dtype and read == [dtype]


@pytest.mark.parametrize("stored, dtype", [("float32", torch.bfloat16), ("float16", torch.float16)])
def test_without_room_for_float32_auto_dtype_is_the_checkpoints_half_precision(folder, stored, dtype, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(placement, "memory_at_hand", lambda: tiny_model("llama").num_parameters() * 4)
    edit_config(folder, dtype=stored)
    assert load_pair(folder, device="cpu").dtype == dtype


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16])
def test_both_models_take_the_dtype_asked_for(saved, dtype):
    pair = load_pair(*saved, dtype=dtype, device="cpu")
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert pair.dtype == pair.target.dtype == pair.draft.dtype == wanted
    assert pair.info().dtype == str(wanted).removeprefix("torch.")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_loads_from_a_folder_as_it_was_saved(architecture, tmp_path):
    original = tiny_pair(architecture)
    target, draft = save_pair(tmp_path, architecture)
    pair = load_pair(target, draft, dtype="float32", device="cpu")
    ids = torch.arange(1, 40)[None]
    with torch.inference_mode():
        assert torch.equal(pair.target(ids).logits, original.target(ids).logits)
        assert torch.equal(pair.draft(ids).logits, original.draft(ids).logits)
    assert pair.context_length == 256 and pair.vocab_size == 128


def test_a_target_alone_is_a_pair_without_a_draft(saved):
    pair = load_pair(saved[0], dtype="float32")
    assert pair.draft is None
    assert pair.info().draft is None and pair.info().draft_parameters is None
    assert pair.name == "target"


def test_padded_vocabularies_of_one_tokenizer_work(saved, tmp_path):
    padded = save_model(tmp_path / "padded", tiny_model("llama", vocab=160))
    pair = load_pair(padded, saved[1], dtype="float32")
    assert pair.vocab_size == 160 and logit_width(pair.draft) == 128
    assert pair.texts[150] == "<id 150>"
    assert load_pair(saved[0], padded, dtype="float32").vocab_size == 128


def test_end_tokens_come_from_all_three_places():
    target = tiny_model("llama", eos_token_id=5)
    target.generation_config.eos_token_id = [7, 9, 10**6]
    assert ModelPair.of(target, None, byte_tokenizer()).eos_ids == {0, 5, 7, 9}


def test_loading_says_nothing_by_itself_and_leaves_the_libraries_as_they_were(saved, capfd):
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    load_pair(*saved, dtype="float32")
    assert capfd.readouterr() == ("", "")
    assert before == (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())


def test_free_gives_the_models_up(saved):
    pair = load_pair(*saved, dtype="float32")
    held = weakref.ref(pair.target), weakref.ref(pair.draft)
    pair.free()
    gc.collect()
    assert [reference() for reference in held] == [None, None]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_timing_passes_leaves_a_usable_model_and_plausible_seconds(architecture):
    seconds = time_passes(tiny_model(architecture), [5, 1, 5], repeats=3)
    assert list(seconds) == [1, 5]
    assert all(0 < value < 5 for value in seconds.values())


# ------------------------------------------------------------------------------------------------ device and dtype


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refusal("device", device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "this machine has 1" in refusal("device", device="cuda:3")


@pytest.mark.parametrize(
    ("device", "words"), [("toaster", "is not a device"), ("mps", "not on mps"), (None, "not a device")]
)
def test_devices_that_cannot_draw_exactly_or_do_not_exist_are_refused(device, words):
    assert words in refusal("device", device=device)


@pytest.mark.parametrize("dtype", ["float12", "int8", torch.float64, None])
def test_other_dtypes_are_refused_with_the_ones_there_are(dtype):
    assert "float32, bfloat16, float16" in refusal("dtype", dtype=dtype)


# ---------------------------------------------------------------------------------------------------- bad folders


def test_a_folder_that_does_not_exist(saved):
    assert "There is no folder" in refusal("target", "/no/such/folder")
    assert "There is no folder" in refusal("draft", saved[0], pathlib.Path("nowhere"))
    assert "is a file" in refusal("target", saved[0] / "config.json")
    assert "Name a model" in refusal("target", " ")
    assert "Name a target too" in refusal("target", None, saved[1])


def write(name: str, data: bytes):
    return lambda folder: (folder / name).write_bytes(data)


def cut(kept: int):
    """The weights after so many bytes are missing."""
    return lambda folder: os.truncate(folder / "model.safetensors", kept)


def without(*names: str):
    return lambda folder: [(folder / name).unlink() for name in names]


def foreign_code(folder):
    edit_config(folder, model_type="nonsense", auto_map={"AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text("raise SystemExit('was run')")


def old_format(folder):
    without("model.safetensors")(folder)
    (folder / "pytorch_model.bin").write_bytes(b"garbage" * 100)


#: (what is done to a saved model, what the refusal says)
DAMAGES = [
    (without("config.json"), "without their config.json"),
    *(
        (write("config.json", text), "cannot use the config.json of copy: ")
        for text in (b"{", b"[]", b"{}", b"\xed\xa0")
    ),
    (write("config.json", b'{"model_type": "llama", "hidden_size": "x"}'), "cannot use the config.json of copy: "),
    (lambda folder: edit_config(folder, model_type="nonsense"), "does not know"),
    (foreign_code, "runs no foreign code"),
    (lambda folder: edit_config(folder, architectures=["LlamaForSequenceClassification"]), "ForSequenceClassification"),
    (without("model.safetensors"), "has no weights"),
    *((cut(kept), "The weights of copy are damaged") for kept in (0, 100, 5000)),
    (old_format, "damaged"),
    (lambda folder: edit_config(folder, intermediate_size=64), "shapes"),
    (lambda folder: edit_config(folder, num_hidden_layers=3, layer_types=None), "incomplete"),
    (write("adapter_config.json", b"{}"), "merge it into its model"),
    (without("tokenizer.json", "tokenizer_config.json"), "has no tokenizer"),
    (write("tokenizer.json", b'{"a": 1}'), "tokenizer"),
    (lambda folder: edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4}), "optimum"),
]


@pytest.mark.parametrize("damage, words", DAMAGES)
def test_a_damaged_or_foreign_folder_is_refused_with_what_is_wrong(folder, damage, words):
    damage(folder)
    assert words in refusal("target", folder)


def test_a_missing_shard_and_a_damaged_index(folder):
    tiny_model("llama").save_pretrained(folder, max_shard_size="100KB")
    (folder / "model.safetensors").unlink()
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[0].unlink()
    assert "a weight file is missing" in refusal("target", folder)
    (folder / "model.safetensors.index.json").write_text("{")
    assert "damaged" in refusal("target", folder)


def test_a_bad_draft_is_the_drafts_fault(saved, folder):
    (folder / "model.safetensors").write_bytes(b"")
    assert "damaged" in refusal("draft", saved[0], folder, dtype="float32")


# ----------------------------------------------------------------------------------- models that cannot speculate


def only_config(folder, config):
    config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "config, words",
    [
        (T5Config(), "encoder-decoder (t5)"),
        *((config, "not a language model") for config in (ViTConfig(), BertConfig(architectures=["BertForMaskedLM"]))),
    ],
)
def test_a_model_that_does_not_write_text(config, words, tmp_path):
    config.save_pretrained(tmp_path)
    assert words in refusal("target", tmp_path)


@pytest.mark.parametrize(
    "architecture, config",
    [
        *((name, {"is_causal": False}) for name in ("llama", "qwen3")),
        ("gemma", {"use_bidirectional_attention": True}),
        ("gemma3", {"use_bidirectional_attention": True}),  # as EmbeddingGemma
        ("bert", {"is_decoder": False, "architectures": ["BertLMHeadModel"]}),
        ("roberta", {"is_decoder": False, "architectures": ["RobertaForCausalLM"]}),
    ],
)
def test_a_model_whose_tokens_see_what_comes_after_them(architecture, config, tmp_path):
    folder = edit_config(save_model(tmp_path / "copy", tiny_model(architecture)), **config)
    assert "tokens see those that come after them" in refusal("target", folder)


def test_a_model_that_raises_over_a_text(folder, monkeypatch):
    def forward(self, *given, **others):
        raise IndexError("index 64 is out of bounds")

    monkeypatch.setattr(LlamaModel, "forward", forward)
    assert "copy (llama) cannot read a text: index 64 is out of bounds" in refusal("target", folder)


def add(folder: pathlib.Path, **tensors: torch.Tensor) -> None:
    """Writes further weights into a saved model's file, or others in their place."""
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path, {"format": "pt"})


@pytest.mark.parametrize(
    "name",
    ["layers.0.self_attn.q_proj.weight_scale", "layers.0.self_attn.q_proj.bias", "layers.0.mlp.up_proj.lora_A.weight"],
)
def test_weights_for_which_the_architecture_has_no_place(folder, name):
    add(folder, **{f"model.{name}": torch.ones(48)})
    message = refusal("target", folder)
    assert f"weights for which its architecture (llama) has no place, 1 in all, such as model.{name}" in message


def test_more_layers_than_the_configuration_promises(folder):
    edit_config(folder, num_hidden_layers=1, layer_types=None)
    assert "has no place, 9 in all" in refusal("target", folder)
    edit_config(folder, num_nextn_predict_layers=1)  # as GLM and DeepSeek store their multi-token-prediction modules
    assert load_pair(folder).target.config.num_hidden_layers == 1


def test_weights_that_change_nothing_are_left_out(folder):
    names = ["model.layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.patch.weight", "mtp.fc.weight"]
    expected = load_pair(folder).target.state_dict()
    add(folder, **{name: torch.ones(6) for name in names})
    given = load_pair(folder).target.state_dict()
    assert all(torch.equal(given[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_weights_that_are_quantised_and_do_not_say_so(folder, dtype):
    add(folder, **{"model.layers.1.mlp.up_proj.weight": torch.zeros(96, 48).to(dtype)})
    assert "stores model.layers.1.mlp.up_proj.weight as " in refusal("target", folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_return_sequences": 2},
        {"early_stopping": "x", "cache_implementation": "x", "max_new_tokens": 0},
        {"watermarking_config": {"a": 1}, "repetition_penalty": 1.3, "temperature": 0.7},
        {"eos_token_id": [None, False, "nothing", {"a": 7}, -1]},
    ],
)
def test_of_settings_beside_a_model_only_the_end_tokens_count(folder, settings):
    (folder / "generation_config.json").write_text(json.dumps(settings))
    pair = load_pair(folder)
    assert pair.eos_ids == {0}
    kept = pair.target.generation_config.to_diff_dict().keys()
    assert not kept & (settings.keys() - {"eos_token_id"})


@pytest.mark.parametrize(
    ("said", "recommended"),
    [
        # Qwen3's, Llama 3's, Gemma 3's and Mistral Small 3.1's own.
        ({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}, SamplingParams(0.6, 20, 0.95)),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, SamplingParams(0.6, top_p=0.9)),
        (
            {"do_sample": True, "cache_implementation": "hybrid", "top_k": 64, "top_p": 0.95},
            SamplingParams(1, 64, 0.95),
        ),
        ({"temperature": 0.15, "eos_token_id": 0}, SamplingParams(0.15)),
        ({"do_sample": None, "min_p": 0.1, "top_p": None}, SamplingParams(min_p=0.1)),
        # What no control takes counts as left out.
        ({"temperature": 0.7, "top_k": -1, "top_p": "high", "min_p": 7}, SamplingParams(0.7)),
        ({"temperature": True, "top_k": 2.5, "top_p": math.nan, "min_p": [0.1]}, None),
        ({"temperature": -1, "top_p": 0, "top_k": 10**400}, None),
        # Nothing about sampling, or greedy decoding.
        ({"do_sample": True, "repetition_penalty": 1.05}, None),
        ({"do_sample": False, "temperature": 0.6}, None),
        ({"do_sample": "yes", "temperature": 0.6}, None),
        ({}, None),
    ],
)
def test_the_sampling_that_a_checkpoint_recommends_is_known_and_applied_to_nothing(folder, said, recommended):
    (folder / "generation_config.json").write_text(json.dumps(said))
    pair = load_pair(folder)
    assert pair.recommended == recommended
    assert prepare(pair, RunSettings("abc", "prompt_lookup")).settings.sampling == SamplingParams()


@pytest.mark.parametrize("named", [7, "7", [7], [[7], None], [7, 10**6]])
def test_end_tokens_are_found_however_they_are_written(folder, named):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert load_pair(folder).eos_ids == {0, 7}


@pytest.mark.parametrize("text", ["{", "[1]", "7"])
def test_damaged_settings_beside_a_model(folder, text):
    (folder / "generation_config.json").write_text(text)
    assert "The generation_config.json of copy is damaged" in refusal("target", folder)


def renamed(folder, to, change):
    """A copy of a saved model, with `change` made to its tokenizer's vocabulary."""
    copy = pathlib.Path(shutil.copytree(folder, to))
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    change(tokenizer["model"]["vocab"])
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    return copy


def swap_a_and_b(vocabulary):
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def test_a_draft_with_another_tokenizer_is_translated(saved, tmp_path):
    other = renamed(saved[1], tmp_path / "other", swap_a_and_b)
    pair = load_pair(saved[0], other, dtype="float32")
    a, b = (pair.tokenizer.convert_tokens_to_ids(token) for token in "ab")
    assert {(a, b), (b, a)} < set(pair.translation.pairs)
    assert load_pair(*saved, dtype="float32").translation is None
    assert load_pair(saved[0], dtype="float32").translation is None


def test_vocabularies_of_which_each_has_tokens_the_other_lacks_are_translated(tmp_path):
    wide = save_model(tmp_path / "wide", tiny_model("llama", vocab=140))
    left = renamed(wide, tmp_path / "left", lambda vocabulary: vocabulary.update(left=130))
    right = renamed(wide, tmp_path / "right", lambda vocabulary: vocabulary.update(right=131))
    translation = load_pair(left, right, dtype="float32").translation
    shared = {target_id for _, target_id in translation.pairs}
    assert all(draft_id == target_id for draft_id, target_id in translation.pairs)
    assert len(shared) == translation.draft_size - 1 and not shared & {130, 131}


def test_tokenizers_with_nothing_or_too_little_in_common_are_refused_by_name(saved, tmp_path):
    def all_but(kept):
        def change(vocabulary):
            names = [name for name in vocabulary if name != END]
            ids = [vocabulary.pop(name) for name in names]
            # Ideographs, which the byte-level alphabet does not have: each stands for itself.
            vocabulary.update({chr(0x4E00 + token_id): token_id for token_id in ids})
            vocabulary.update({name: 1000 + index for index, name in enumerate(kept)})
            vocabulary.update({chr(0x5E00 + index): 2000 + index for index in range(200)})

        return change

    for kept, count in ((), "0"), (("a", "b"), "2"):
        stranger = renamed(saved[1], tmp_path / f"stranger {count}", all_but(kept))
        message = refusal("draft", saved[0], stranger)
        assert f"share only {count} of the draft's" in message and f"stranger {count} and target" in message


# --------------------------------------------------------------------------------------------------------- memory


def test_too_little_memory_is_found_out_before_loading(saved, monkeypatch):
    monkeypatch.setattr(placement, "memory_at_hand", lambda: 1000)
    monkeypatch.setattr(sources.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("loaded"))
    message = refusal("target", *saved, dtype="float32", device="cpu")
    assert "needs about" in message and "are free" in message and "half precision" in message


def test_memory_for_the_target_only_is_the_drafts_refusal(saved, monkeypatch):
    monkeypatch.setattr(placement, "memory_at_hand", lambda: tiny_model("llama").num_parameters() * 3)
    assert "draft needs about" in refusal("draft", *saved, dtype="bfloat16", device="cpu")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_running_out_of_memory_gives_back_what_was_taken(saved, monkeypatch, error):
    real, taken = sources.AutoModelForCausalLM.from_pretrained, []

    def target_then_nothing(location, **options):
        if str(location).endswith("draft"):
            half_a_model = tiny_model("llama")
            taken.append(weakref.ref(half_a_model))
            raise error
        loaded = real(location, **options)
        taken.append(weakref.ref(loaded[0]))
        return loaded

    monkeypatch.setattr(sources.AutoModelForCausalLM, "from_pretrained", target_then_nothing)
    with pytest.raises(SpecvizError) as caught:
        load_pair(*saved, dtype="float32", device="cpu")
    # The error is still held here, and its traceback with it: the models must be gone nevertheless.
    gc.collect()
    assert caught.value.field == "draft" and "are free" in str(caught.value)
    assert [reference() for reference in taken] == [None, None]


def test_whatever_is_raised_over_the_weights_is_a_sentence_and_stays_behind_it(saved, monkeypatch):
    def astray(*args, **settings):
        raise ArithmeticError("tensor a must match tensor b")

    monkeypatch.setattr(sources.AutoModelForCausalLM, "from_pretrained", astray)
    with pytest.raises(SpecvizError, match="target cannot be read: tensor a must match tensor b") as caught:
        load_pair(saved[0])
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_memory_at_hand_respects_a_containers_limit(tmp_path, monkeypatch):
    whole = placement.memory_at_hand()
    assert whole > 0
    monkeypatch.setattr(placement, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 700\n")
    assert placement.memory_at_hand() == 2700
    (tmp_path / "memory.max").write_text("max\n")
    assert placement.memory_at_hand() > 2700


# --------------------------------------------------------------------------------------------------------- the Hub


@pytest.fixture
def hub_cache(saved, tmp_path, monkeypatch):
    """A download of org/tiny in the Hub's own cache layout, and no network beyond it."""
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(saved[0], snapshot)
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(sources.HfApi, "model_info", raising(hub.HTTPError("Name or service not known")))
    return tmp_path


def raising(error):
    def call(*args, **settings):
        raise error

    return call


def hub_error(kind, status=404):
    response = types.SimpleNamespace(status_code=status, headers={}, request=None, text="")
    return kind("refused", response=response)


def test_an_earlier_download_is_used_without_network(hub_cache):
    pair = load_pair("org/tiny", "org/tiny", dtype="float32")
    assert pair.info().name == "org/tiny + org/tiny"


def test_no_network(hub_cache):
    assert "the Hub cannot be reached" in refusal("target", "org/other")
    assert "the Hub cannot be reached" in refusal("draft", "org/tiny", "org/other")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (hub_error(hub.RepositoryNotFoundError), "There is no model org/new on the Hub"),
        (hub_error(hub.GatedRepoError, 403), "accept its licence at https://huggingface.co/org/new and set HF_TOKEN"),
        (hub_error(hub.RevisionNotFoundError), "no such revision"),
        (hub_error(hub.HfHubHTTPError, 401), "check HF_TOKEN"),
        (hub_error(hub.HfHubHTTPError, 503), "answered 503"),
    ],
)
def test_the_hubs_refusals_are_sentences(error, words, monkeypatch):
    monkeypatch.setattr(sources.HfApi, "model_info", raising(error))
    assert words in refusal("target", "org/new")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (hub_error(hub.GatedRepoError, 403), "is gated"),
        (hub_error(hub.RemoteEntryNotFoundError), "one of its files is missing"),
        (hub.HTTPError("reset by peer"), "connection to the Hub broke"),
    ],
)
def test_refusals_that_come_with_the_first_file(error, words, monkeypatch):
    def wrapped(*args, **settings):
        raise OSError("wrapped, as transformers does") from error

    monkeypatch.setattr(sources.HfApi, "model_info", lambda *a, **k: types.SimpleNamespace(sha="1" * 40))
    monkeypatch.setattr(sources.AutoConfig, "from_pretrained", wrapped)
    assert words in refusal("target", "org/new")


@pytest.mark.parametrize("name", ["two words", "a..b/c", "-x/y", "org/<script>"])
def test_a_malformed_id(name):
    assert "neither a folder here nor a Hub id" in refusal("target", name)


def test_all_files_come_from_one_commit_with_the_token_given(hub_cache, monkeypatch):
    asked, told = [], []
    real = sources.AutoConfig.from_pretrained

    def model_info(self, name, revision=None, timeout=None):
        asked.append((name, revision, self.token))
        return types.SimpleNamespace(sha="0" * 40)

    monkeypatch.setattr(sources.HfApi, "model_info", model_info)
    monkeypatch.setattr(
        sources.AutoConfig,
        "from_pretrained",
        lambda *a, **k: told.append(k) or real(*a, **k | {"local_files_only": True}),
    )
    monkeypatch.setenv("HF_TOKEN", "from the environment")
    sources.find_model("org/tiny", "target", "v1", "given")
    assert asked == [("org/tiny", "v1", "given")]
    assert told[0]["revision"] == "0" * 40 and told[0]["token"] == "given"


def test_half_precision_is_what_that_gpu_multiplies_in(monkeypatch):
    majors = {0: 7, 1: 8}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(major=majors[device.index])
    )
    assert placement.half_precision(torch.device("cuda:0"), None) == torch.float16
    assert placement.half_precision(torch.device("cuda:1"), None) == torch.bfloat16


@pytest.mark.skipif(sys.platform != "linux", reason="only there a process can list its mapped files")
def test_weights_lie_in_aligned_memory_of_their_own_and_no_file_stays_mapped(folder):
    pair = load_pair(folder, device="cpu", dtype=torch.float32)
    assert str(folder) not in pathlib.Path("/proc/self/maps").read_text()
    stored = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.float32}, "nothing is converted, and so copied"
    for name, weight in pair.target.named_parameters():
        assert weight.data_ptr() % 64 == 0 and torch.equal(weight, stored[name])


def test_models_may_be_read_at_the_same_time():
    reads = [unmapped(), unmapped()]
    for read in reads:
        read.__enter__()
    for read in reads:
        read.__exit__(None, None, None)
    assert modeling_utils.safe_open is safe_open, "afterwards transformers reads as it did before"
