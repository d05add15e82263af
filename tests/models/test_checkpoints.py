"""What people bring: checkpoints of many architectures, with odd settings, in other formats, in other places.

The text is the one that transformers writes with them, or a sentence says why there is none.
"""

import pathlib
import random
import shutil
from collections import Counter

import pytest
import torch
from assistant_files import assistant_config, assistant_weights, saved
from odd_checkpoints import ARCHITECTURES, Odd, shrunk, write
from safetensors.torch import load_file, save_file
from tiny import ARCHITECTURES as TINY
from tiny import MORE_ARCHITECTURES, edit_config, generated, greedy_run, save_model, spread, tiny_model
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, GenerationConfig

import specviz
from specviz.models import placement
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams, SamplingParams

GREEDY = SamplingParams(temperature=0)
PROMPT = [3, 5, 7, 11, 3, 5]

#: Everything that drafts without anything but the target.
ORDERS = [(None, None), ("suffix", None), ("prompt_lookup", None), ("lookahead", None), ("early_exit", 1)]
ORDERS += [("early_exit", 3), ("quantised_self", 1)]


AT_ONCE = 14
#: Seeds that a test begins with: all together draw each architecture once, and the first ones are tried while editing.
FIRST_SEEDS = [
    pytest.param(first, marks=[] if first < 2 * AT_ONCE else pytest.mark.wide)
    for first in range(0, len(ARCHITECTURES), AT_ONCE)
]


@torch.inference_mode()
def reference(pair: ModelPair, prompt: list[int], tokens: int) -> list[int]:
    """transformers' own greedy continuation, asked for exactly that; without a cache, which at times changes it."""
    pair.target.generation_config = GenerationConfig()
    return generated(pair, prompt, tokens, use_cache=False)


def texts(pair: ModelPair, prompt: list[int], tokens: int) -> tuple[list[list[int]], str | None]:
    """The greedy text by every way to draft that is not refused, and why the text ends."""
    found, reason = [], None
    for drafter, branches in ORDERS:
        order = {"drafter": drafter, "num_draft_tokens": 3, "drafting": DraftParams(branches=branches)}
        try:
            run = specviz.run(pair, prompt, max_new_tokens=tokens, sampling=GREEDY, **order)
        except SpecvizError as error:
            assert_a_sentence(error)
            # Whatever else a target lacks, it can be decoded plainly, if the prompt fits.
            assert drafter is not None or error.field in ("prompt", "dtype")
            continue
        found.append(list(run.token_ids))
        assert run.text is not None
        reason = run.stop_reason
    return found, reason


def assert_a_sentence(error: SpecvizError) -> None:
    message = str(error)
    assert error.field is not None and message.endswith(".") and "\n" not in message and "{" not in message


def outcome(seed: int, folder: pathlib.Path) -> str:
    """What became of the checkpoint of this seed: ``refused``, or ``equal``."""
    odd, draw = Odd.drawn(seed), random.Random(seed)
    write(odd, folder, seed)
    try:
        pair = load_pair(folder, dtype="float32", device="cpu")
    except SpecvizError as error:
        assert_a_sentence(error)
        assert error.field == "target"
        return "refused"
    known = min(pair.vocab_size, 120)
    prompt = [draw.randrange(known) for _ in range(draw.choice([4, 9, 20]))]
    found, reason = texts(pair, prompt, draw.choice([6, 12, 30]))
    if not found:
        return "refused"
    expected = reference(pair, prompt, len(found[0]))
    assert all(one == expected for one in found), (odd, found, expected)
    assert reason != "context" or len(prompt) + len(expected) == pair.context_length
    return "equal"


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_drawn_checkpoints_write_what_generate_writes_or_are_refused(first, tmp_path):
    counts = Counter()
    for seed in range(first, first + AT_ONCE):
        try:
            counts[outcome(seed, tmp_path / str(seed))] += 1
        except Exception as error:
            raise AssertionError(f"checkpoint {seed}: {Odd.drawn(seed)}") from error
        shutil.rmtree(tmp_path / str(seed))  # together they would fill a small disk
    assert counts["equal"], "refusing everything shows little"


# --- architectures ----------------------------------------------------------------------------------------------------


def refusal(folder: pathlib.Path, **settings) -> str:
    with pytest.raises(SpecvizError) as caught:
        load_pair(folder, **settings)
    assert_a_sentence(caught.value)
    assert caught.value.field == "target"
    return str(caught.value)


def assert_equal_texts(folder: pathlib.Path, least: int = 4) -> None:
    pair = load_pair(folder, dtype="float32")
    found, _ = texts(pair, PROMPT, 12)
    expected = reference(pair, PROMPT, 12)
    assert len(found) >= least and all(one == expected for one in found) and len(set(expected)) > 1


@pytest.mark.parametrize(
    "kind", ["llava", *(pytest.param(kind, marks=pytest.mark.wide) for kind in ("qwen3_vl", "lfm2_vl"))]
)
def test_a_model_that_also_sees_runs_on_text(kind, tmp_path):
    config = shrunk(kind)
    config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
    torch.manual_seed(3)
    model = AutoModelForImageTextToText.from_config(config)
    spread(model)
    assert_equal_texts(save_model(tmp_path, model))


@pytest.mark.parametrize("kind", ["gemma3", "gemma4", "gemma4_unified"])
@torch.inference_mode()
def test_of_a_gemma_that_also_sees_the_text_model_alone_is_run(kind, tmp_path):
    text = (TINY | MORE_ARCHITECTURES)["gemma3" if kind == "gemma3" else "gemma4"][1]
    text = text | {"vocab_size": 128, "num_hidden_layers": 2, "pad_token_id": 0}
    text["layer_types"] = ["sliding_attention", "full_attention"]
    seeing = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    seeing |= {"num_key_value_heads": 2, "head_dim": 16}
    config = CONFIG_MAPPING[kind](text_config=text, vision_config=seeing, eos_token_id=[5, 7])
    torch.manual_seed(3)
    model = AutoModelForImageTextToText.from_config(config).eval()
    spread(model)
    folder = save_model(tmp_path, model)
    (folder / "generation_config.json").unlink()
    pair = load_pair(folder, folder, dtype="float32", device="cpu")
    ids = torch.tensor([PROMPT * 4])
    for loaded in (pair.target, pair.draft):
        assert "vision" not in str(loaded) and loaded.num_parameters() < model.num_parameters()
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert pair.eos_ids >= {5, 7}
    if kind != "gemma3":
        unified = kind.removeprefix("gemma4")
        config = assistant_config(f"gemma4{unified}", vocab=128)
        assistant = saved(tmp_path / "assistant", config, assistant_weights(config))
        pair = load_pair(folder, assistant, dtype="float32", device="cpu")
        assert greedy_run(pair, PROMPT, 12, drafter="mtp").settings["modules"] == 1


# --- places and memory ------------------------------------------------------------------------------------------------


def test_a_repository_in_the_hubs_cache_is_the_version_it_is_at(tmp_path):
    folder = save_model(tmp_path / "copy", tiny_model("llama"))
    repository = tmp_path / "models--org--its-model"
    for version in ("0" * 40, "1" * 40):
        shutil.copytree(folder, repository / "snapshots" / version)
    for named in (repository, repository / "snapshots"):
        assert "keeps 2 versions of" in refusal(named)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    for named in (repository, repository / "snapshots", repository / "snapshots" / ("0" * 40)):
        assert load_pair(named).target_name == "org/its-model"


@pytest.mark.parametrize("address", ["https://huggingface.co/org/model", "https://hf.co/org/model/tree/main"])
def test_a_page_of_the_hub_names_its_model(address, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refusal(pathlib.PurePosixPath("org/model").as_posix()) == refusal(address)
    assert "is an address" in refusal("https://example.org/model")


def test_memory_of_what_is_unpacked_is_that_of_all_its_weights(tmp_path, monkeypatch):
    """FP8 in blocks, which no CPU multiplies."""
    model = tiny_model("llama", hidden_size=64, intermediate_size=128, head_dim=16)
    folder = save_model(tmp_path, model.to(torch.bfloat16))
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        scale = tensors[name].float().abs().amax() / 448
        tensors[name] = (tensors[name].float() / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale.expand(tensors[name].shape[0] // 32, tensors[name].shape[1] // 32).clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    edit_config(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [32, 32]})
    held = 2 * model.num_parameters()
    assert (folder / "model.safetensors").stat().st_size < 0.8 * held
    monkeypatch.setattr(placement, "memory_at_hand", lambda: held - 1)
    assert "needs about" in refusal(folder, device="cpu")
    monkeypatch.setattr(placement, "memory_at_hand", lambda: 2 * held)
    pair = load_pair(folder, device="cpu")
    assert sum(weight.nbytes for weight in pair.target.parameters()) == held
