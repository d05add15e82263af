"""GGUF files as models: found, unpacked, and refused in a sentence where they cannot be."""

import importlib.util
import pathlib

import gguf
import pytest
import torch
from refusal import refusal
from tiny import byte_tokenizer, save_model, tiny_model
from tiny_gguf import MERGES, SIZES, write_gguf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import specviz
from specviz.models import placement
from specviz.models.pair import ModelPair
from specviz.models.trained_parts import load_parts
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.kernels.packed_linear import FewRowsLinear
from specviz.records.settings import SamplingParams
from specviz.training.heads import MedusaRecipe

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> pathlib.Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf", tiny_model("llama", **SIZES))


@pytest.fixture(scope="module")
def pair(file) -> ModelPair:
    return loaded(file)


def loaded(*named: pathlib.Path, dtype: str = "float32") -> ModelPair:
    return specviz.load_pair(*named, device="cpu", dtype=dtype)


def test_a_file_is_the_model_that_was_written_there(pair):
    original = tiny_model("llama", **SIZES).state_dict()
    assert pair.target.state_dict().keys() == original.keys()
    for name, weight in pair.target.state_dict().items():
        torch.testing.assert_close(weight, original[name], rtol=0, atol=0.02 * original[name].abs().max().item())
    assert (pair.name, pair.stored, pair.info().dtype) == ("tiny.Q8_0", {"target": "Q8_0"}, "float32")
    assert getattr(pair.target.config, "quantization_config", None) is None


def test_weights_in_few_bits_are_neither_rounded_once_more_nor_unpacked_for_our_kernels(pair, file, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert loaded(file, dtype="auto").target.dtype == torch.float32
    layers = [part for part in FewRows.ready().twin(pair.target).modules() if isinstance(part, FewRowsLinear)]
    assert layers and all(layer.grid[:3] == (8, 32, False) for layer in layers)


def test_its_tokenizer_and_chat_template_come_with_it(pair):
    assert pair.encode("the tale").ids == tuple(byte_tokenizer(MERGES)("the tale")["input_ids"])
    assert pair.encode("tale", chat=True).text == "<user>tale\n<assistant>"


def test_a_folder_that_holds_one_and_a_file_without_suffix_are_models(file, tmp_path, monkeypatch):
    beside = write_gguf(tmp_path / "folder.gguf", tiny_model("llama", **SIZES))
    for name in ("folder.gguf.part00", "folder.gguf.sha256"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert loaded(tmp_path).name == "folder"
    beside.unlink()
    nameless = tmp_path / "sha256-0123"
    nameless.write_bytes(
        write_gguf(tmp_path / "named.gguf", tiny_model("llama", **SIZES), general__name="A tale").read_bytes()
    )
    assert loaded(nameless).name == "A tale"
    # A file of that name where the program was started is another one.
    (tmp_path / file.name).write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert loaded(file).stored == {"target": "Q8_0"}


def test_a_file_drafts_for_a_folder(file, tmp_path):
    folder = save_model(tmp_path / "target", tiny_model("llama", **SIZES), byte_tokenizer(MERGES))
    pair = loaded(folder, file)
    assert pair.stored == {"draft": "Q8_0"} and pair.translation is None


def test_a_part_trained_on_it_fits_in_every_precision(pair, file, tmp_path):
    MedusaRecipe(pair.target).save(tmp_path / "medusa")
    for dtype in ("float32", "bfloat16", "float16"):
        assert load_parts(loaded(file, dtype=dtype).target, tmp_path, {})[0].keys() == {"medusa"}
    # Nothing can lie inside a file.
    assert f"--target {file} --text FILE --out FOLDER and name" in str(pair.missing_part("eagle"))


def test_the_sampling_that_a_header_recommends_is_known_in_its_own_digits(tmp_path, file):
    names = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
    fields = {f"general__sampling__{name}": value for name, value in names.items()}
    told = write_gguf(tmp_path / "told.gguf", tiny_model("llama", **SIZES), **fields)
    assert loaded(told).recommended == SamplingParams(0.6, 20, 0.95, 0.05)
    assert loaded(file).recommended is None


def test_the_end_of_a_turn_ends_a_text(tmp_path):
    told = write_gguf(tmp_path / "chat.gguf", tiny_model("llama", **SIZES), tokenizer__ggml__eot_token_id=7)
    assert loaded(told).eos_ids == {0, 7}


def test_positions_are_stretched_as_in_llama_3(tmp_path):
    model = tiny_model("llama", **SIZES, rope_parameters=LLAMA3 | {"rope_theta": 500_000.0})
    plain = 500_000.0 ** (-torch.arange(8) / 8)
    factors = plain / ROPE_INIT_FUNCTIONS["llama3"](model.config)[0]
    stretched = write_gguf(tmp_path / "stretched.gguf", model, stretch=factors, llama__rope__freq_base=500_000.0)
    rotary = loaded(stretched).target.model.rotary_emb
    torch.testing.assert_close(rotary.inv_freq, model.model.rotary_emb.inv_freq)
    other = write_gguf(tmp_path / "other.gguf", model, stretch=2 * factors, llama__rope__freq_base=500_000.0)
    assert "scales its positions in a way (rope_freqs.weight)" in refusal("target", loaded, other)


def test_positions_are_stretched_by_a_factor(tmp_path):
    fields = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    model = tiny_model("llama", **SIZES)
    halved = loaded(write_gguf(tmp_path / "halved.gguf", model, **fields)).target.model.rotary_emb.inv_freq
    torch.testing.assert_close(4 * halved, model.model.rotary_emb.inv_freq)
    yarn = write_gguf(tmp_path / "yarn.gguf", model, **fields | {"llama__rope__scaling__type": "yarn"})
    assert "in a way (yarn)" in refusal("target", loaded, yarn)


def test_memory_is_reckoned_as_unpacked(file, monkeypatch):
    monkeypatch.setattr(placement, "memory_at_hand", lambda: 2 * file.stat().st_size)
    assert "needs about" in refusal("target", loaded, file)


@pytest.mark.parametrize(
    "name, part, sentence",
    [
        ("a.gguf", slice(3), "does not begin like a GGUF file"),
        ("a.gguf", slice(2000), "The GGUF file a.gguf is damaged or incomplete"),
        ("a.gguf", slice(60_000), "The GGUF file a.gguf is damaged or incomplete"),
        ("a.gguf.part00", slice(None), "put the pieces together (cat a.gguf.* > a.gguf)"),
        ("a.gguf.ab", slice(9000, None), "put the pieces together (cat a.gguf.* > a.gguf)"),
        ("a-00002-of-00003.gguf", slice(None), "llama-gguf-split --merge"),
        ("weights.bin", slice(9000, None), "is a file, but not a GGUF file"),
    ],
)
def test_what_is_no_whole_file_is_refused_with_what_to_do(file, name, part, sentence, tmp_path):
    (tmp_path / name).write_bytes(file.read_bytes()[part])
    assert sentence in refusal("target", loaded, tmp_path / name)
    if ".gguf" in name:
        assert sentence in refusal("target", loaded, tmp_path)


def test_the_package_is_named_where_it_is_missing(file, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else real(name))
    assert "pip install gguf" in refusal("target", loaded, file)


def test_a_load_reads_the_header_once_and_leaves_the_library_as_it_was(pair, file, monkeypatch):
    """Token after token, it takes a second for every 20,000 of them."""
    built: list[object] = []
    whole = gguf.gguf_reader.GGUFReader._build_fields

    def build(reader, *arguments):
        built.append(reader)
        return whole(reader, *arguments)

    monkeypatch.setattr(gguf.gguf_reader.GGUFReader, "_build_fields", build)
    specviz.load_pair(file, passes="plain")
    assert len(built) == 1
    assert gguf.GGUFReader is gguf.gguf_reader.GGUFReader
    assert gguf.get_tensor_name_map is gguf.tensor_mapping.get_tensor_name_map
