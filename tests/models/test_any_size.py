"""Pairs larger than one device, and packed ones: what they write is what the same weights write on one device."""

import tempfile
import types

import pytest
import torch
from refusal import refusal
from safetensors.torch import load_file, save_file
from tiny import RECIPES, byte_tokenizer, edit_config, save_model, save_pair, stirred, tiny_model, tiny_pair
from tqdm import tqdm
from transformers import LlamaConfig

import specviz
from specviz.bench.machine import model_size
from specviz.models import checks, placement, sources
from specviz.models import weights as model_weights
from specviz.models.loading import load_pair
from specviz.models.pass_timer import PassTimer
from specviz.models.placement import Place
from specviz.models.sources import ModelSource
from specviz.models.weights import check_memory, with_room
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch, home_of

GB = 10**9

PROMPT = list(range(5, 25))
NEW_TOKENS = 6

#: Every way to read the target: whole, left early, and its hidden states; chains and trees.
DRAFTERS = (
    (None, specviz.DraftParams()),
    ("draft_model", specviz.DraftParams(branches=2, confidence=0.3)),
    ("prompt_lookup", specviz.DraftParams()),
    ("early_exit", specviz.DraftParams()),
    ("eagle", specviz.DraftParams(branches=2)),
    ("parallel", specviz.DraftParams()),
)


def runs(pair):
    """Greedy and sampled runs of all drafters."""
    return {
        (drafter, temperature): specviz.run(
            pair,
            PROMPT,
            drafter=drafter,
            drafting=params,
            sampling=specviz.SamplingParams(temperature),
            max_new_tokens=NEW_TOKENS,
            seed=2,
        )
        for drafter, params in DRAFTERS
        for temperature in (0.0, 1.0)
    }


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    """The same tests on every machine: here main memory is the only device, and disk is what lies beyond."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target with trained parts beside it, and a draft."""
    folder = tmp_path_factory.mktemp("pair")
    pair = tiny_pair("llama", layers=4)
    target = save_model(folder / "target", pair.target, pair.tokenizer)
    save_model(folder / "draft", pair.draft, pair.tokenizer)
    for recipe in RECIPES:
        stirred(recipe, pair.target).save(target / recipe.name)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """The runs of that pair, whole on one device."""
    return runs(load_pair(folder / "target", folder / "draft", device="cpu", dtype="float32"))


def weights(folder):
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


# ------------------------------------------------------------------------------------------------ spread over devices


def spread(folder, monkeypatch, share):
    """The pair, with room in main memory for the draft and this share of the target."""
    memory = (weights(folder / "draft") + share * weights(folder / "target")) / placement._FILLED
    monkeypatch.setattr(placement, "memory_at_hand", lambda: int(memory))
    return load_pair(folder / "target", folder / "draft", device="spread", dtype="float32")


def test_a_target_partly_on_disk_writes_what_it_writes_in_memory(folder, expected, monkeypatch, capfd):
    pair = spread(folder, monkeypatch, share=0.6)
    assert capfd.readouterr() == ("", "")
    assert pair.info().device == "cpu, disk" and pair.info().target_parameters == pair.info().draft_parameters
    assert {parameter.is_meta for parameter in pair.target.parameters()} == {False, True}
    assert pair.flaws == {}, "its trained parts know it"
    for name, run in runs(pair).items():
        assert run.token_ids == expected[name].token_ids, name
        assert run.rounds[0].drafted == pytest.approx(expected[name].rounds[0].drafted), name


def test_a_target_of_which_nothing_fits_still_runs_on_the_device_it_is_read_to(folder, expected, monkeypatch):
    pair = spread(folder, monkeypatch, share=0.0)
    assert pair.info().device == "disk" and pair.target.device.type == "meta"
    assert pair.device == home_of(pair.target) == CachedModel(pair.target, Stopwatch(pair.device)).device
    assert pair.device.type == "cpu"
    order = {"drafter": "early_exit", "max_new_tokens": NEW_TOKENS, "seed": 2}
    run = specviz.run(pair, PROMPT, sampling=specviz.SamplingParams(0.0), **order)
    assert run.token_ids == expected["early_exit", 0.0].token_ids


def test_windows_and_tied_weights_survive_being_spread(tmp_path, monkeypatch):
    save_pair(tmp_path, "gemma3", layers=4, tie_word_embeddings=True)
    whole = load_pair(tmp_path / "target", tmp_path / "draft", device="cpu", dtype="float32")
    parts = spread(tmp_path, monkeypatch, share=0.6)
    assert parts.info().device == "cpu, disk"
    settings = {"sampling": specviz.SamplingParams(1.0), "max_new_tokens": 40}
    texts = [specviz.run(pair, PROMPT, **settings).token_ids for pair in (whole, parts)]
    assert texts[0] == texts[1]


def test_nothing_stays_behind_on_disk(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pair = spread(folder, monkeypatch, share=0.6)
    assert len(list(tmp_path.iterdir())) == 1
    pair.free()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs with 20 and 30 GB free, as far as planning goes, and 40 GB of main memory."""
    free = {"cuda": 20 * GB, "cuda:0": 20 * GB, "cuda:1": 30 * GB, "cpu": 40 * GB}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for module in (placement, model_weights):
        monkeypatch.setattr(module, "free_memory", lambda device: free[str(device)])


def of_size(field, size):
    """A source whose weights take so many bytes in half precision."""
    source = ModelSource(field, field, field, {}, LlamaConfig())
    source.parameters = size // 2
    return source


def test_auto_spreads_a_pair_that_is_too_large_for_one_gpu_and_not_for_all(two_gpus):
    place, half = Place(torch.device("cuda")), torch.bfloat16
    for size, spreads in ((15 * GB, False), (30 * GB, True), (60 * GB, False)):
        found = with_room(place, [of_size("target", size), of_size("draft", 4 * GB)], half)
        assert found == Place(place.device, spreads)
    assert "needs about 60 GB" in refusal("target", check_memory, [of_size("target", 60 * GB)], place, half)


def test_a_spread_target_leaves_its_draft_room_beside_it(two_gpus):
    place = placement.place_named("spread")
    assert place == Place(torch.device("cuda"), spread=True)
    assert placement.room_to_spread(place, spare=5 * GB) == {0: 13 * GB, 1: 27 * GB, "cpu": 36 * GB}
    pair = [of_size("target", 500 * GB), of_size("draft", 25 * GB)]
    assert "needs about 25 GB" in refusal("draft", check_memory, pair, place, torch.bfloat16)
    check_memory([pair[0], of_size("draft", 15 * GB)], place, torch.bfloat16)


# --------------------------------------------------------------------------------------------------------- quantised


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "(bitsandbytes) and needs a package"),
        ({"load_in_8bit": True}, "(bitsandbytes) and needs a package"),
        ({"quant_method": "awq", "bits": 4}, "(awq) and needs a package"),
        ({"quant_method": "of tomorrow"}, "(of tomorrow) and cannot be loaded here: Unknown quantization type"),
    ],
)
def test_what_a_quantised_draft_lacks_is_named_before_weights_are_read(folder, tmp_path, monkeypatch, settings, words):
    tiny_model("llama").config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    edit_config(tmp_path, quantization_config=settings)
    monkeypatch.setattr(sources.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("read weights"))
    assert words in refusal("draft", load_pair, folder / "target", tmp_path)


@pytest.fixture
def packed(tmp_path):
    """A checkpoint with 8-bit floats and a scale for each matrix, and the weights that these stand for."""
    folder = save_model(tmp_path / "packed", tiny_model("llama").to(torch.bfloat16))
    file = folder / "model.safetensors"
    packed, meant = {}, {}
    for name, weight in load_file(file).items():
        packed[name] = meant[name] = weight
        if name.endswith("proj.weight"):
            scale = weight.float().abs().max() / torch.finfo(torch.float8_e4m3fn).max
            packed[name] = (weight / scale).to(torch.float8_e4m3fn)
            packed[f"{name}_scale_inv"] = scale.view(1, 1)
            meant[name] = (packed[name].float() * scale).to(torch.bfloat16)
    save_file(packed, file, metadata={"format": "pt"})
    edit_config(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    return folder, meant


def test_a_quantised_checkpoint_loads_by_its_own_configuration_and_keeps_its_dtype(packed):
    folder, meant = packed
    pair = load_pair(folder, device="cpu", dtype="float32")
    assert pair.dtype == torch.bfloat16 and pair.info().dtype == "bfloat16"
    unpacked = pair.target.state_dict()
    for name, weight in meant.items():
        torch.testing.assert_close(unpacked[name], weight, rtol=2**-6, atol=0)
    for temperature in (0.0, 1.0):
        sampling = specviz.SamplingParams(temperature)
        assert specviz.run(pair, PROMPT, drafter="early_exit", sampling=sampling, max_new_tokens=8).text


@pytest.mark.parametrize(("method", "unpacked"), [("compressed-tensors", True), ("gptq", False)])
def test_what_transformers_unpacks_is_reckoned_unpacked(method, unpacked, tmp_path, monkeypatch):
    folder = save_model(tmp_path / "model", tiny_model("llama"))
    source = sources.find_model(folder, "target", None, None)
    source.config.quantization_config = {"quant_method": method}
    quantiser = types.SimpleNamespace(quantization_config=None, validate_environment=lambda **_: None)
    monkeypatch.setattr(checks.AutoHfQuantizer, "from_config", lambda *_, **__: quantiser)
    checks.check_quantisation(source, torch.device("cpu"))
    expected = source.parameters * source.config.dtype.itemsize if unpacked else source._file_bytes
    assert source.weight_bytes(torch.float32) == expected != 0


def test_no_librarys_bar_is_seen_while_models_load(capfd):
    with sources.quietly():
        assert list(tqdm(range(2), disable=False)) == [0, 1]
    assert capfd.readouterr().err == ""
    assert list(tqdm(range(2), desc="afterwards")) == [0, 1]
    assert "afterwards" in capfd.readouterr().err


def test_a_packed_weight_counts_as_what_a_pass_reads(monkeypatch):
    """A tensor that keeps 8-bit values and says bfloat16, as quantised weights do."""

    class Packed(torch.Tensor):
        @staticmethod
        def __new__(cls, values):
            return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.bfloat16)

        def __init__(self, values):
            self.values, self.scale = values, torch.ones(values.shape[0])

        def __tensor_flatten__(self):
            return ["values", "scale"], None

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return args[0]

    timer = PassTimer(tiny_model("llama"), (1,))
    before = model_size(timer).weight_bytes
    layer = timer.model.model.layers[0].mlp.up_proj
    rows, columns = layer.weight.shape
    layer.weight = torch.nn.Parameter(Packed(torch.zeros(rows, columns, dtype=torch.int8)), requires_grad=False)
    assert before - model_size(timer).weight_bytes == 4 * rows * columns - (rows * columns + 4 * rows)
