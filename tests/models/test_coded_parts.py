"""Parts whose weights are codes of few bits in safetensors: they draft what the unpacked weights draft, or are refused.

The file coded_weights.safetensors holds, by format, what compressed-tensors 0.20 and transformers 5.24 (fp8) made of a
weight of 48 rows and 64 columns, and in float32 what they unpack from that (nvfp4: rounded to bfloat16 on the way).
"""

import pathlib
from collections.abc import Sequence

import pytest
import torch
from eagle3_heads import write_eagle3
from refusal import refused
from safetensors.torch import load_file, save_file
from tiny import edit_config, save_pair
from torch import Tensor

import specviz
from specviz.models.pair import ModelPair
from specviz.models.trained_parts import load_part
from specviz.parts.reading import TrainedPart

DATA = load_file(pathlib.Path(__file__).parent.parent / "data" / "coded_weights.safetensors")

#: By the formats in it, the tensors.
CODED: dict[str, dict[str, Tensor]] = {}
for key, tensor in DATA.items():
    CODED.setdefault(key.partition("/")[0], {})[key.partition("/")[2]] = tensor

_NVFP4 = CODED["nvfp4-pack-quantized"]
CODED["Model Optimizer"] = {
    "weight": _NVFP4["weight_packed"],
    "weight_scale": _NVFP4["weight_scale"],
    "weight_scale_2": 1 / _NVFP4["weight_global_scale"][0],
    "input_scale": torch.tensor(0.5),
    "unpacked": _NVFP4["unpacked"],
}

#: What the configuration says of blocks.
SETTINGS = {"float-quantized, blocks": {"config_groups": {"group_0": {"weights": {"block_structure": [20, 32]}}}}}
SETTINGS["fp8"] = {"weight_block_size": [16, 32], "quant_method": "fp8"}

LAYER = "layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> ModelPair:
    return loaded(save_pair(tmp_path_factory.mktemp("pair"), "qwen3", layers=3, noise=0.15)[0])


def loaded(target: pathlib.Path, *drafts: pathlib.Path) -> ModelPair:
    return specviz.load_pair(target, drafts, device="cpu", dtype="float32", passes="plain")


def head(folder: pathlib.Path, target: ModelPair, tensors: dict[str, Tensor], **settings: object) -> TrainedPart:
    """One in which these stand for the weight of a layer."""
    write_eagle3(folder, target.target, "speculators")
    edit_config(folder, **settings)
    weights = load_file(folder / "model.safetensors")
    del weights[f"{LAYER}.weight"]
    save_file(weights | {f"{LAYER}.{name}": one for name, one in tensors.items()}, folder / "model.safetensors")
    return load_part("eagle", folder, target.target)


@pytest.mark.parametrize("name", CODED)
def test_codes_are_unpacked_as_those_do_who_wrote_them(name, target, tmp_path):
    tensors = dict(CODED[name])
    unpacked = tensors.pop("unpacked")
    part = head(tmp_path, target, tensors, quantization_config=SETTINGS.get(name, {"quant_method": "any"}))
    rounded = torch.equal(unpacked, unpacked.bfloat16().float())
    torch.testing.assert_close(part.layers[0].mlp.down_proj.weight, unpacked, rtol=2**-8 if rounded else 0, atol=0)


def test_a_head_in_codes_drafts_what_its_unpacked_weights_draft(target, tmp_path):
    (coded := tmp_path / "coded").mkdir()
    write_eagle3(plain := tmp_path / "plain", target.target, "speculators")
    (coded / "config.json").write_bytes((plain / "config.json").read_bytes())
    codes, weights = {}, load_file(plain / "model.safetensors")
    for name, weight in weights.items():
        codes[name] = weight
        if weight.dim() == 2 and "embed" not in name:
            scale = weight.abs().amax(1, keepdim=True) / 448
            codes |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}
            weights[name] = codes[name].float() * scale
    save_file(codes, coded / "model.safetensors")
    save_file(weights, plain / "model.safetensors")
    settings = {"drafter": "eagle", "num_draft_tokens": 3, "max_new_tokens": 12}
    folder = target.target.config.name_or_path
    runs = [specviz.run(loaded(folder, head), [3, 5, 7, 11], **settings) for head in (coded, plain)]
    drafts = [[one.drafted for one in run.rounds] for run in runs]
    assert len(codes) > len(weights) + 7 and drafts[0] == drafts[1] and any(drafts[0])


FP8, PACKED = CODED["float-quantized"], CODED["pack-quantized"]


def packed(codes: Tensor, bits: int, order: Sequence[int]) -> Tensor:
    """Words [rows, columns · bits / 32] int32, of which each holds the codes of as many columns, in this order from the
    lowest bits on."""
    words = torch.zeros(len(codes), codes.shape[1] * bits // 32, dtype=torch.int64)
    for place, column in enumerate(order):
        words |= codes[:, column :: len(order)].long() << place * bits
    return (words - (words >> 31 << 32)).int()


def transposed(bits: int, method: str, g_idx: Tensor | None = None) -> dict[str, Tensor]:
    """Of a weight of 48 rows and 64 columns in 4 groups, the tensors that a layer has in AWQ's files, or in GPTQ's of
    one version, and what they stand for."""
    generator = torch.Generator().manual_seed(bits)
    codes, zeros = (torch.randint(0, 2**bits, (rows, 48), generator=generator) for rows in (64, 4))
    scales = torch.rand(4, 48, generator=generator).half()
    groups = torch.arange(64) // 16 if g_idx is None else g_idx
    unpacked = torch.stack([(codes[i] - zeros[group]) * scales[group].float() for i, group in enumerate(groups)], 1)
    if method == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        tensors = {"qweight": packed(codes, bits, order), "qzeros": packed(zeros, bits, order)}
    else:
        in_turn, zeros = range(32 // bits), (zeros - int(method == "gptq")) % 2**bits
        tensors = {"qweight": packed(codes.T, bits, in_turn).T.contiguous(), "qzeros": packed(zeros, bits, in_turn)}
        tensors["g_idx"] = groups.int()
    return tensors | {"scales": scales, "unpacked": unpacked}


#: By a name, the bits, what packs them, and what the configuration says of the format.
METHODS = {"AWQ": (4, "awq", {"version": "gemm"}), "GPTQ v2": (4, "gptq_v2", {"checkpoint_format": "gptq_v2"})}
METHODS |= {f"GPTQ, {bits} bits": (bits, "gptq", {"checkpoint_format": "gptq"}) for bits in (2, 4, 8)}
METHODS["GPTQ v2, as transformers calls it"] = (4, "gptq_v2", {"format": "gptq_v2"})
METHODS["GPTQ by activations"] = (4, "gptq", {"desc_act": True})


@pytest.mark.parametrize("name", METHODS)
def test_codes_in_words_are_unpacked_as_they_are_defined(name, target, tmp_path):
    bits, method, settings = METHODS[name]
    g_idx = torch.randperm(64, generator=torch.Generator().manual_seed(0)) // 16 if "desc_act" in settings else None
    tensors = transposed(bits, method, g_idx)
    unpacked = tensors.pop("unpacked")
    part = head(tmp_path, target, tensors, quantization_config=settings)
    assert torch.equal(part.layers[0].mlp.down_proj.weight, unpacked)


GPTQ = transposed(4, "gptq")

#: What is refused: the tensors of the layer, and what the sentence says.
REFUSED = {
    "no zero points": ({name: GPTQ[name] for name in ("qweight", "scales")}, "not unpacked here .*qweight"),
    "MLX": ({"weight": PACKED["weight_packed"], "scales": torch.ones(48, 1)}, "not unpacked here .*down_proj"),
    "a group too many": (
        {name: GPTQ[name] for name in ("qweight", "qzeros", "scales")} | {"g_idx": torch.arange(64).int() // 8},
        "not unpacked here",
    ),
    "AWQ for single rows (gemv)": (
        {"qweight": torch.zeros(48, 8).int(), "qzeros": torch.zeros(48, 1).int(), "scales": torch.ones(48, 8).half()},
        "has the shape",
    ),
    "bitsandbytes": ({"weight": CODED["int-quantized"]["weight"], "SCB": torch.ones(48)}, "not unpacked here .*SCB"),
    "no scales": ({"weight": FP8["weight"]}, "numbers of the type float8_e4m3fn"),
    "scales alone": ({"weight_scale": FP8["weight_scale"]}, "has the shape"),
    "a global scale alone": (
        {name: _NVFP4[name] for name in ("weight_packed", "weight_global_scale")},
        "not unpacked here",
    ),
    "scales of plain weights": ({"weight": FP8["unpacked"], "weight_scale": FP8["weight_scale"]}, "not unpacked here"),
    "blocks of unknown size": (
        {"weight": FP8["weight"], "weight_scale": CODED["float-quantized, blocks"]["weight_scale"]},
        "not unpacked here",
    ),
    "three bits": (
        {name: PACKED[name] for name in ("weight_scale", "weight_shape")}
        | {"weight_packed": PACKED["weight_packed"][:, :6].contiguous()},
        "not unpacked here",
    ),
    "columns in another order": (
        {name: one for name, one in PACKED.items() if name != "unpacked"} | {"weight_g_idx": torch.zeros(64)},
        "weight_g_idx, which specviz does not know",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_codes_that_are_not_known_are_refused(name, target, tmp_path):
    tensors, sentence = REFUSED[name]
    with refused("draft", sentence):
        head(tmp_path, target, tensors)


def test_plain_weights_are_read_whatever_the_configuration_copies_from_a_target(target, tmp_path):
    part = head(tmp_path, target, {"weight": FP8["unpacked"]}, quantization_config={"quant_method": "gptq", "bits": 4})
    assert torch.equal(part.layers[0].mlp.down_proj.weight, FP8["unpacked"])
