"""Folders that hold no model to speculate with, or none that is whole: each is refused by what is wrong with it."""

import os
import pathlib
import shutil

import pytest
import torch
from refusal import refused
from safetensors.torch import load_file, save_file
from tiny import ONE_BY_ONE, edit_config, save_model, tiny_model
from transformers import CONFIG_MAPPING, BertConfig, T5Config, ViTConfig
from transformers.models.llama.modeling_llama import LlamaModel

import specviz
from specviz.models import hub
from specviz.models.hub import without_page
from specviz.models.loading import load_pair

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> pathlib.Path:
    return save_model(tmp_path_factory.mktemp("model") / "target", tiny_model("llama"))


@pytest.fixture
def folder(saved, tmp_path) -> pathlib.Path:
    """A private copy."""
    return pathlib.Path(shutil.copytree(saved, tmp_path / "copy"))


def refusal(*named: pathlib.Path, field: str = "target") -> str:
    with refused(field) as caught:
        load_pair(*named)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and "{" not in message.replace("config.json of copy: {", "")
    return message


# What is done to a folder


def write(name: str, data: bytes):
    return lambda folder: (folder / name).write_bytes(data)


def cut(kept: int):
    """The weights after so many bytes are missing."""
    return lambda folder: os.truncate(folder / "model.safetensors", kept)


def without(*names: str):
    return lambda folder: [(folder / name).unlink() for name in names]


def replaced(file: str, data: bytes = b""):
    """The weights are in another file."""

    def change(folder: pathlib.Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(data)

    return change


def only(*files: str):
    """Nothing is there but these, empty."""

    def change(folder: pathlib.Path) -> None:
        shutil.rmtree(folder)
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()

    return change


def configured(**changes):
    return lambda folder: edit_config(folder, **changes)


def with_code(folder: pathlib.Path) -> None:
    edit_config(folder, model_type="nonsense", auto_map={"AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text("raise SystemExit('was run')")


def with_tensor(name: str, tensor: torch.Tensor):
    def change(folder: pathlib.Path) -> None:
        path = folder / "model.safetensors"
        save_file(load_file(path) | {name: tensor}, path, {"format": "pt"})

    return change


def with_an_adapter(folder: pathlib.Path) -> None:
    """As peft names everything of a model that it was added to."""
    weights = load_file(folder / "model.safetensors")
    named = {f"base_model.model.{name}": weight for name, weight in weights.items() if "q_proj" not in name}
    for name, weight in weights.items():
        if "q_proj" in name:
            layer = f"base_model.model.{name.removesuffix('.weight')}"
            named |= {f"{layer}.base_layer.weight": weight, f"{layer}.lora_A.default.weight": torch.ones(4, 48)}
    save_file(named, folder / "model.safetensors", {"format": "pt"})


ATTENTION, UP = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj.weight"
BROKEN_CONFIGS = (b"{", b"[]", b"{}", b"\xed\xa0", b'{"model_type": "llama", "hidden_size": "x"}')

#: (what is done to a saved model, what the refusal says)
DAMAGES = [
    (without("config.json"), "without their config.json"),
    *((write("config.json", text), "cannot use the config.json of copy: ") for text in BROKEN_CONFIGS),
    (configured(model_type="nonsense"), "does not know"),
    (with_code, "runs no third-party code"),
    (configured(architectures=["LlamaForSequenceClassification"]), "ForSequenceClassification"),
    (without("model.safetensors"), "has no weights"),
    *((cut(kept), "The weights of copy are damaged") for kept in (0, 100, 5000)),
    (replaced("pytorch_model.bin", b"garbage" * 100), "damaged"),
    (
        configured(intermediate_size=64),
        "mlp.down_proj.weight in copy has the shape [48, 96], but its config.json promises [48, 64]",
    ),
    (with_tensor(UP, torch.zeros(0)), f"{UP} in copy is empty, as DeepSpeed's ZeRO leaves weights"),
    (with_an_adapter, "still has an adapter in it (base_model.model."),
    (configured(num_hidden_layers=3, layer_types=None), "incomplete"),
    (configured(num_hidden_layers=1, layer_types=None), "(9 in all)"),
    *(
        (with_tensor(name, torch.ones(48)), f"(llama) has no place for, such as {name} (1 in all)")
        for name in (f"{ATTENTION}.weight_scale", f"{ATTENTION}.bias")
    ),
    *(
        (with_tensor(UP, torch.zeros(96, 48).to(dtype)), f"stores {UP} as ")
        for dtype in (torch.float8_e4m3fn, torch.int8)
    ),
    (write("adapter_config.json", b"{}"), "merge it into its model"),
    (with_tensor("model.layers.0.mlp.up_proj.lora_A.weight", torch.ones(48)), "still has an adapter in it"),
    (without("tokenizer.json", "tokenizer_config.json"), "has no tokenizer"),
    (write("tokenizer.json", b'{"a": 1}'), "tokenizer"),
    *((write("generation_config.json", text), "generation_config.json of copy is damaged") for text in (b"{", b"[1]")),
    (configured(quantization_config={"quant_method": "gptq", "bits": 4}), "optimum"),
    (configured(quantization_config={"group_size": 64, "bits": 4}), "quantised by MLX, Apple's library"),
    (configured(quantization_config={}), "does not name the method"),
    (write("model.safetensors", POINTER), "model.safetensors in copy is only a pointer of Git LFS: fetch the file"),
    *(
        (replaced(file), f"only has weights for another library ({file.split('/')[-1]})")
        for file in ("model.onnx", "onnx/model.onnx", "openvino_model.xml", "tf_model.h5")
    ),
    (only("onnx/model.onnx"), "is exported for another program (model.onnx)"),
    (only("params.json", "consolidated.safetensors"), "is in its publisher's own format (params.json)"),
    (only("consolidated.00.pth"), "is in its publisher's own format (consolidated.00.pth)"),
    (only("model.safetensors"), "holds weights (model.safetensors) without their config.json"),
    (only("tokenizer.json"), "not a model in transformers' format: it has no config.json"),
    (only("checkpoint-10/config.json"), "name one of the models in it, such as"),
]


@pytest.mark.parametrize("damage, words", DAMAGES)
def test_a_damaged_or_foreign_folder_is_refused_by_what_is_wrong_with_it(folder, damage, words):
    damage(folder)
    assert words in refusal(folder)


def test_a_missing_shard_and_a_damaged_index(folder):
    tiny_model("llama").save_pretrained(folder, max_shard_size="100KB")
    (folder / "model.safetensors").unlink()
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[0].unlink()
    assert "a weight file is missing" in refusal(folder)
    (folder / "model.safetensors.index.json").write_text("{")
    assert "damaged" in refusal(folder)


def test_a_bad_draft_is_the_drafts_fault(saved, folder):
    (folder / "model.safetensors").write_bytes(b"")
    assert "damaged" in refusal(saved, folder, field="draft")


def test_there_has_to_be_a_folder(saved):
    assert "There is no folder" in refusal("/no/such/folder")
    assert "There is no folder" in refusal(saved, pathlib.Path("nowhere"), field="draft")
    assert "is a file" in refusal(saved / "config.json")
    assert "Name a model" in refusal(" ")
    assert "Name a target too" in refusal(None, saved)


# Models that cannot speculate


@pytest.mark.parametrize(
    "config, words",
    [
        (T5Config(), "encoder-decoder (t5)"),
        (ViTConfig(), "not a language model"),
        (BertConfig(architectures=["BertForMaskedLM"]), "not a language model"),
        (CONFIG_MAPPING["deepseek_v4"](), "be rewound: layers of the kind heavily_compressed_attention"),
        *(
            (CONFIG_MAPPING[kind](), f"({kind}) keeps a running state outside the caches")
            for kind in ("recurrent_gemma", "rwkv", "xlstm")
        ),
        *((CONFIG_MAPPING[kind](), f"({kind}) runs without a cache") for kind in ("openai-gpt", "xlnet")),
    ],
)
def test_what_cannot_speculate_is_refused_by_its_configuration(config, words, tmp_path):
    config.save_pretrained(tmp_path)
    assert words in refusal(tmp_path)


SEES_AHEAD = "tokens see the tokens that come after them"
IN_PASSES = "differently in several passes than in one"


@pytest.mark.parametrize(
    "architecture, config, words",
    [
        *((name, {"is_causal": False}, SEES_AHEAD) for name in ("llama", "qwen3")),
        *((name, {"use_bidirectional_attention": True}, SEES_AHEAD) for name in ("gemma", "gemma3")),
        ("bert", {"is_decoder": False, "architectures": ["BertLMHeadModel"]}, SEES_AHEAD),
        ("roberta", {"is_decoder": False, "architectures": ["RobertaForCausalLM"]}, SEES_AHEAD),
        # Windows that the architecture does not have: transformers' caches heed them, and its models do not.
        ("llama", {"sliding_window": 4}, IN_PASSES),
        ("gpt2", {"attention_chunk_size": 4096}, IN_PASSES),
        ("gpt_neox", {"sliding_window": 4096}, IN_PASSES),
        *((name, {}, "From its running state, transformers continues") for name in ONE_BY_ONE),
    ],
)
def test_a_model_that_reads_a_text_otherwise_than_it_must(architecture, config, words, tmp_path):
    folder = edit_config(save_model(tmp_path / "copy", tiny_model(architecture)), **config)
    assert words in refusal(folder)


def test_a_model_that_raises_over_a_text(folder, monkeypatch):
    def forward(self, *given, **others):
        raise IndexError("index 64 is out of bounds")

    monkeypatch.setattr(LlamaModel, "forward", forward)
    assert "copy (llama) cannot read a text: index 64 is out of bounds" in refusal(folder)


@pytest.mark.parametrize("field", ["target", "draft"])
def test_a_quantisation_after_a_colon_leads_to_the_file(saved, field):
    for name in ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "hf.co/unsloth/Qwen3-0.6B-GGUF:Q8_0"):
        named = [name] if field == "target" else [saved, name]
        assert "unsloth/Qwen3-0.6B-GGUF/FILE.gguf" in refusal(*named, field=field)


@pytest.mark.parametrize("pack", ["zip", "gztar", "tar"])
def test_a_packed_model_is_to_be_unpacked(folder, tmp_path, pack):
    assert "is packed: unpack it" in refusal(pathlib.Path(shutil.make_archive(tmp_path / "model", pack, folder)))


def test_addresses_of_files_and_pages_are_the_models():
    for begins in ("https://huggingface.co/", "https://hf.co/", "hf.co/", "hf://", "huggingface.co/"):
        assert without_page(f"{begins}org/model", "target") == "org/model"
    for kind in ("blob", "resolve"):
        page = f"https://huggingface.co/org/model/{kind}/main/"
        assert (
            without_page(f"{page}folder/model-Q4_K_M.gguf?download=true", "target")
            == "org/model/folder/model-Q4_K_M.gguf"
        )
        assert without_page(f"{page}model.safetensors", "target") == "org/model"
    for name in ("org/model", "./folder", "https://example.org/org/model", "https://huggingface.co/org/model/tree/old"):
        assert without_page(name, "target") == name


def test_where_no_file_can_have_such_a_name_the_address_of_a_page_is_one_all_the_same(monkeypatch):
    class InvalidName(OSError):
        """As Windows raises it."""

        winerror = 123

    def stat(path, *given, **named):
        raise InvalidName(22, "The filename, directory name, or volume label syntax is incorrect")

    monkeypatch.setattr(hub.os, "stat", stat)
    assert without_page("https://huggingface.co/org/model", "target") == "org/model"


@pytest.mark.parametrize("named", [5, b"/no/such/folder"])
def test_what_is_no_name_is_refused_as_one(named):
    with pytest.raises(specviz.SpecvizError, match="names no model: give a folder, a file or a Hub id"):
        specviz.load_pair(named)
