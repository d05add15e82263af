"""Trained parts in GGUF: they draft what the published files draft that llama.cpp's own converter made them from.

The files in data/gguf_parts were written by its convert_hf_to_gguf.py (build b11434, --outtype f32) from what `WRITTEN`
writes for the target of these tests, that of the assistant with the tokenizer of `sentencepiece_tokenizer`; and from
what `checkpoint` writes, with --mtp where there are modules alone (Qwen's with full_attention_interval 2, and both with
a token more, since a GGUF file's tokenizer needs one merge).
"""

import pathlib
from collections.abc import Callable
from functools import partial

import gguf
import numpy as np
import pytest
import torch
from assistant_files import FULL, SLIDING, assistant_config, assistant_weights, saved
from block_checkpoints import LAYOUTS, write_block
from eagle3_heads import write_eagle3
from mtp_folders import save_with_modules
from refusal import refused
from tiny import save_model, save_pair, tiny_model
from tiny_gguf import SIZES, write_modules
from transformers import PreTrainedModel

import specviz
from specviz.models.pair import ModelPair
from specviz.parts.gguf_file import GgufFile
from specviz.parts.gguf_parts import GgufPart
from specviz.parts.mtp import MtpModules
from specviz.passes.kernels.grids import on_grids
from specviz.records.settings import SamplingParams

DATA = pathlib.Path(__file__).parent.parent / "data" / "gguf_parts"

#: As Gemma 4's larger models have them: fewer keys and values in layers with full attention, for wider heads of which
#: half turns with the positions.
GEMMA = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "vocab_size": 296, "hidden_size_per_layer_input": 0}
GEMMA["rope_parameters"] = {
    SLIDING: {"rope_type": "default", "rope_theta": 5e3},
    FULL: {"rope_type": "proportional", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
}


def write_assistant(folder: pathlib.Path, _: PreTrainedModel) -> pathlib.Path:
    config = assistant_config(vocab=GEMMA["vocab_size"], ordered=False)
    config["text_config"] |= GEMMA
    return saved(folder, config, assistant_weights(config))


#: By a file's name, what writes the published one.
WRITTEN: dict[str, Callable[[pathlib.Path, PreTrainedModel], object]] = {
    "eagle3": partial(
        write_eagle3, speculators_model_type="eagle3", eagle_aux_hidden_state_layer_ids=[0, 1, 2]
    ),  # a smaller vocabulary
    "dflash": partial(write_block, layout=LAYOUTS["DFlash z-lab, sliding both ways"]),
    "dflash2": partial(write_block, layout=LAYOUTS["DFlash2"]),
    "dspark": partial(write_block, layout=LAYOUTS["DSpark DeepSpec"]),
    "gemma4-assistant": write_assistant,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> pathlib.Path:
    return save_pair(tmp_path_factory.mktemp("pair"), "llama", noise=0.15)[0]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory) -> pathlib.Path:
    settings = {"layers": 4, "layer_types": [SLIDING, FULL] * 2, "vocab": GEMMA["vocab_size"], "eos_token_id": None}
    model = tiny_model("gemma4", **settings | {name: GEMMA[name] for name in GEMMA.keys() - {"vocab_size"}})
    return save_model(tmp_path_factory.mktemp("gemma"), model)


def loaded(target: pathlib.Path, *drafts: pathlib.Path) -> ModelPair:
    return specviz.load_pair(target, drafts, device="cpu", dtype="float32", passes="plain")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_part_in_gguf_drafts_what_the_published_one_drafts(name, target, gemma, tmp_path):
    target = gemma if name.startswith("gemma") else target
    WRITTEN[name](tmp_path, loaded(target).target)
    assert_same_drafts(loaded(target, DATA / f"{name}.gguf"), loaded(target, tmp_path))


def assert_same_drafts(converted: ModelPair, published: ModelPair, close: float = 0) -> None:
    """close: how far probabilities may be apart."""
    ((drafter, part),) = converted.parts.items()
    assert part.facts() == published.parts[drafter].facts()
    for temperature in (0, 2):
        settings = {"drafter": drafter, "num_draft_tokens": 3, "max_new_tokens": 40, "seed": 3}
        settings["sampling"] = SamplingParams(temperature)
        here, there = (specviz.run(pair, [3, 5, 7, 11], **settings) for pair in (converted, published))
        drafts = [[token for one in run.rounds for token in one.drafted] for run in (here, there)]
        assert [token.id for token in drafts[0]] == [token.id for token in drafts[1]]
        assert [token.q_raw for token in drafts[0]] == pytest.approx([token.q_raw for token in drafts[1]], abs=close)
        assert here.token_ids == there.token_ids and any(round_.drafted for round_ in here.rounds)


#: By a family of targets, its file: of a target with its module, and of two modules alone.
MODULES = {"qwen3_5_moe": DATA / "qwen35moe.gguf", "glm4_moe": DATA / "mtp-glm4moe.gguf"}


@pytest.fixture(scope="module", params=MODULES)
def checkpoint(request, tmp_path_factory) -> pathlib.Path:
    """The published target with modules, in a folder that has its family's name."""
    folder = tmp_path_factory.mktemp("modules") / request.param
    folder.mkdir()
    modules = 2 if request.param == "glm4_moe" else 1
    return save_with_modules(folder, request.param, modules, vocab=SIZES["vocab"])


def test_modules_in_gguf_draft_what_those_in_their_checkpoint_draft(checkpoint):
    file = MODULES[checkpoint.name]
    pair = loaded(checkpoint, file) if file.name.startswith("mtp") else loaded(file)
    published = loaded(checkpoint)
    for name, weight in pair.target.named_parameters():
        if name.endswith("A_log"):
            # Stored as −exp(w). What comes back depends in its last digit on the processor's logarithm, and changes a
            # step's decay by up to 2e-6.
            exact = published.target.get_parameter(name)
            torch.testing.assert_close(weight, exact, rtol=0, atol=3e-7)
            weight.data.copy_(exact)
    # Norms are stored as w + 1, which float32 rounds.
    assert_same_drafts(pair, published, 1e-6)
    assert isinstance(pair.parts["mtp"], MtpModules)


def test_modules_in_codes_of_few_bits_are_unpacked_as_they_say(tmp_path):
    """And a single row is read that llama.cpp's programs write as a vector."""
    row, code = "blk.2.ffn_gate_inp_shexp.weight", gguf.GGMLQuantizationType.Q8_0
    vector = GgufFile(MODULES["qwen3_5_moe"]).tensor(row).numpy().ravel()
    file = repacked("qwen35moe", tmp_path / "target.gguf", "Q8_0", {row: vector})
    exact, part = (loaded(one).parts["mtp"].modules[0].module for one in (MODULES["qwen3_5_moe"], file))
    for (name, weight), expected in zip(part.named_parameters(), exact.parameters(), strict=True):
        if weight.dim() > 1 and weight.shape[-1] % 32 == 0:
            codes = gguf.quants.quantize(expected.numpy(), code)
            assert not torch.equal(weight, expected), name
            expected = torch.from_numpy(gguf.quants.dequantize(codes, code))
        torch.testing.assert_close(weight, expected, rtol=0, atol=0)


@pytest.mark.parametrize("checkpoint", ["glm4_moe"], indirect=True)
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"glm4moe__embedding_length": 64}, "made for another target: hidden_size is 64 there and 48 here"),
        ({"others": {"blk.3.attn_sinks.weight": np.ones(4, np.float32)}}, "contain blk.3.attn_sinks.weight"),
    ],
)
def test_modules_that_do_not_fit_are_refused(changes, sentence, checkpoint, tmp_path):
    with refused("draft", sentence):
        loaded(checkpoint, repacked("mtp-glm4moe", tmp_path / "part.gguf", **changes))


def repacked(
    name: str, file: pathlib.Path, kind: str = "F32", others: dict[str, np.ndarray] | None = None, **header: object
) -> pathlib.Path:
    """A copy of one of the files with its matrices in codes of this kind, where their rows allow it, and other values
    in its header; None leaves one out. others: tensors in the places of those there, or besides, codes if they are
    bytes."""
    reader, code = gguf.GGUFReader(DATA / f"{name}.gguf"), gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[code][0]
    writer = gguf.GGUFWriter(file, str(reader.get_field("general.architecture").contents()))
    changes = {key.replace("__", "."): value for key, value in header.items()}
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")) and key not in changes:
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
    for key, value in changes.items():
        if value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, other in (others or {}).items():
        writer.add_tensor(name, other, raw_dtype=code if other.dtype == np.uint8 else None)
    for tensor in reader.tensors:
        if others and tensor.name in others:
            continue
        whole = tensor.data.ndim > 1 and tensor.data.shape[-1] % max(32, block) == 0 and kind != "F32"
        data = gguf.quants.quantize(tensor.data, code) if whole else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=code if whole else tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


#: In what our kernels keep such weights: bits of a code, how many columns share a scale, and whether an offset too. All
#: these numbers in float16, as in the file.
KEPT_SHORT = {"Q8_0": (8, 32, False), "Q4_0": (4, 32, True), "Q4_1": (4, 32, True)}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "BF16", "F16"])
def test_codes_of_few_bits_are_unpacked_as_they_say(kind, target, tmp_path):
    file = repacked("dspark", tmp_path / "part.gguf", kind)
    exact, code = GgufPart(GgufFile(DATA / "dspark.gguf")), gguf.GGMLQuantizationType[kind]
    part = loaded(target, file).parts["parallel"]
    tensors = GgufFile(file).tensors
    packed = [name for name, stored in exact.tensors.items() if tensors[stored][1] == code]
    assert len(packed) == 3
    for name, weight in part.named_parameters():
        expected = exact.tensor(name)
        if name in packed:
            codes = gguf.quants.quantize(expected.numpy(), code)
            expected = torch.from_numpy(gguf.quants.dequantize(codes, code)).reshape(expected.shape)
            if kind in KEPT_SHORT:
                grid, parts = on_grids(expected)
                assert grid[:3] == KEPT_SHORT[kind]
                assert all(number.dtype == torch.float16 for part in parts for number in part[1:])
        torch.testing.assert_close(weight, expected, rtol=0, atol=0)


def test_a_single_row_may_be_a_vector(target, tmp_path):
    """As llama.cpp's own programs write it, though not its converter."""
    row = GgufFile(DATA / "dspark.gguf").tensor("conf_proj.weight")
    file = repacked("dspark", tmp_path / "part.gguf", others={"conf_proj.weight": row.numpy().ravel()})
    assert row.dim() == 2 and torch.equal(loaded(target, file).parts["parallel"].confidence_head.proj.weight, row)


#: By the kinds of codes that come in blocks of 256, how many bytes a block has, and where in it half-precision factors
#: of all its weights are.
BLOCKS = {"Q2_K": (84, 80), "Q3_K": (110, 108), "Q4_K": (144, 0), "Q5_K": (176, 0), "Q6_K": (210, 208)}
BLOCKS |= {"IQ4_XS": (136, 0)}

#: The same of them, whose scales are products and stay in float32.
KEPT_IN = {"Q2_K": (8, 16, True), "Q3_K": (8, 16, False), "Q4_K": (4, 32, True), "Q5_K": (8, 16, True)}
KEPT_IN |= {"Q6_K": (8, 16, False), "IQ4_XS": (8, 32, False)}


@pytest.mark.parametrize("kind", BLOCKS)
def test_codes_in_blocks_of_256_are_unpacked_as_they_say(kind, target, tmp_path):
    width, wide, (size, factors) = GgufPart(GgufFile(DATA / "eagle3.gguf")).settings["hidden_size"], 512, BLOCKS[kind]
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (width, wide // 256, size), np.uint8)
    two = 4 if kind in ("Q2_K", "Q4_K", "Q5_K") else 2
    blocks[..., factors : factors + two] = np.array([2e-4, 3.1e-4], np.float16)[: two // 2].view(np.uint8)
    codes, plain = blocks.reshape(width, -1), generator.normal(size=(wide, width)).astype(np.float32)
    others = {"blk.0.ffn_down.weight": codes} | {f"blk.0.ffn_{name}.weight": plain for name in ("gate", "up")}
    file = repacked("eagle3", tmp_path / "part.gguf", kind, others, eagle3__feed_forward_length=wide)
    weight = loaded(target, file).parts["eagle"].layers[0].mlp.down_proj.weight
    unpacked = gguf.quants.dequantize(codes, gguf.GGMLQuantizationType[kind])
    torch.testing.assert_close(weight, torch.from_numpy(unpacked), rtol=0, atol=0)
    assert unpacked.shape == (width, wide) and 0.001 < unpacked.std() < 1
    assert on_grids(weight)[0][:3] == KEPT_IN[kind]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gemma4-assistant__rope__dimension_count_swa": 6}, "scales its positions"),
        ({"gemma4-assistant__rope__scaling__type": "linear"}, "scales its positions"),
        ({"eagle3__rope__scaling__type": "yarn"}, "scales its positions"),
        ({"eagle3__target_layers": None}, "made for another target"),
        ({"eagle3__target_hidden_size": 64}, "made for another target"),
        ({"eagle3__embedding_length": None}, "has the shape"),
    ],
)
def test_a_part_that_does_not_fit_or_would_draft_otherwise_is_refused(changes, sentence, target, tmp_path):
    name = next(iter(changes)).partition("__")[0]
    with refused("draft", sentence):
        loaded(target, repacked(name, tmp_path / "part.gguf", **changes))


def test_modules_without_their_target_are_refused_by_what_they_are(target, tmp_path):
    file = write_modules(tmp_path / "mtp.gguf")
    with refused("draft", "modules that were taken out of a checkpoint: name that checkpoint as the target"):
        loaded(target, file)


def test_codes_that_cannot_be_unpacked_are_not_called_damaged(target, monkeypatch):
    def cannot(*_):
        raise NotImplementedError("Quantization for NVFP4 is not yet implemented")

    monkeypatch.setattr(gguf, "dequantize", cannot)
    with refused("draft", "cannot unpack: .* Q8_0"):
        loaded(target, DATA / "eagle3.gguf")


def test_a_file_that_was_cut_short_is_named(target, tmp_path):
    whole = (DATA / "eagle3.gguf").read_bytes()
    (cut := tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with refused("draft", "cut.gguf"):
        loaded(target, cut)
