"""What people bring: checkpoints of many architectures, with odd settings, in other formats, in other places.

The text is the one that transformers writes with them, or a sentence says why there is none.
"""

import pathlib
import random
import shutil
from collections import Counter

import pytest
import torch
from odd_checkpoints import ARCHITECTURES, Odd, shrunk, write
from safetensors.torch import load_file, save_file
from tiny import ONE_BY_ONE, edit_config, save_model, spread, tiny_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

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

#: `generate` gives them positions that begin at 0, against their own definition.
OWN_POSITIONS = {
    "camembert",
    "data2vec-text",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}

AT_ONCE = 14
#: Seeds that a test begins with: all together draw each architecture once, and the first ones are tried while editing.
FIRST_SEEDS = [
    pytest.param(first, marks=[] if first < 2 * AT_ONCE else pytest.mark.wide)
    for first in range(0, len(ARCHITECTURES), AT_ONCE)
]


@torch.inference_mode()
def reference(pair: ModelPair, prompt: list[int], tokens: int) -> list[int]:
    """transformers' own greedy continuation, asked for exactly that; without a cache, which at times changes it."""
    if pair.target.config.model_type in OWN_POSITIONS:
        ids = list(prompt)
        while len(ids) < len(prompt) + tokens and not pair.eos_ids.intersection(ids[len(prompt) :][-1:]):
            ids.append(pair.target(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax().item())
        return ids[len(prompt) :]
    pair.target.generation_config = GenerationConfig()
    asked = {"max_new_tokens": tokens, "do_sample": False, "use_cache": False, "pad_token_id": 0}
    config = GenerationConfig(**asked, eos_token_id=list(pair.eos_ids) or None)
    ids = torch.tensor([prompt])
    output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return output[0, len(prompt) :].tolist()


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


def only_config(folder: pathlib.Path, kind: str) -> pathlib.Path:
    CONFIG_MAPPING[kind]().save_pretrained(folder)
    return folder


def test_a_cache_that_cannot_be_rewound_is_named_by_its_kind_of_layer(tmp_path):
    message = refusal(only_config(tmp_path, "deepseek_v4"))
    assert "cannot be rewound: of its layers of the kind heavily_compressed_attention" in message


@pytest.mark.parametrize("kind", ["recurrent_gemma", "rwkv", "xlstm"])
def test_a_state_that_is_in_no_cache(kind, tmp_path):
    assert f"({kind}) keeps a running state outside the caches" in refusal(only_config(tmp_path, kind))


@pytest.mark.parametrize("architecture", ONE_BY_ONE)
def test_a_state_that_transformers_reads_on_from_token_by_token_only(architecture, tmp_path):
    model = tiny_model(architecture)
    assert f"({model.config.model_type}) on from its running state one token" in refusal(save_model(tmp_path, model))


@pytest.mark.parametrize("kind", ["openai-gpt", "xlnet"])
def test_a_model_that_transformers_runs_without_a_cache(kind, tmp_path):
    assert f"({kind}) runs without a cache" in refusal(only_config(tmp_path, kind))


def assert_equal_texts(folder: pathlib.Path, least: int = 4) -> None:
    pair = load_pair(folder, dtype="float32")
    found, _ = texts(pair, PROMPT, 12)
    expected = reference(pair, PROMPT, 12)
    assert len(found) >= least and all(one == expected for one in found) and len(set(expected)) > 1


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("granitemoehybrid", {"layer_types": ["attention"] * 2, "num_local_experts": 0, "mamba_n_heads": 4}),
        ("qwen3_next", {"layer_types": ["full_attention"] * 2, "num_experts_per_tok": 2}),
        ("lfm2", {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_hybrid_families_run_where_all_their_layers_attend(kind, settings, tmp_path):
    sizes = {"vocab_size": 128, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "bos_token_id": 0,
    }
    sizes |= {"shared_intermediate_size": 64, "num_experts": 4, "moe_intermediate_size": 32, "head_dim": 12}
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**sizes | settings))
    spread(model)
    assert_equal_texts(save_model(tmp_path, model))


@pytest.mark.parametrize(
    "kind", ["llava", "gemma3", *(pytest.param(kind, marks=pytest.mark.wide) for kind in ("qwen3_vl", "lfm2_vl"))]
)
def test_a_model_that_also_sees_runs_on_text(kind, tmp_path):
    config = shrunk(kind)
    config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
    torch.manual_seed(3)
    model = AutoModelForImageTextToText.from_config(config)
    spread(model)
    assert_equal_texts(save_model(tmp_path, model))


@pytest.mark.parametrize(
    "architecture, setting, size",
    [("llama", "sliding_window", 4), ("gpt2", "attention_chunk_size", 4096), ("gpt_neox", "sliding_window", 4096)],
)
def test_a_window_that_the_architecture_does_not_have(architecture, size, setting, tmp_path):
    """transformers' caches heed it, and its models do not: text depends on how it is read."""
    folder = edit_config(save_model(tmp_path, tiny_model(architecture)), **{setting: size})
    assert "differently in several passes than in one" in refusal(folder)


# --- formats and places -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    return save_model(tmp_path / "copy", tiny_model("llama"))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


def test_pointers_of_git_lfs_are_fetched_first(folder):
    (folder / "model.safetensors").write_bytes(POINTER)
    assert "model.safetensors in copy is only a pointer of Git LFS: fetch the file" in refusal(folder)


@pytest.mark.parametrize("file", ["model.onnx", "onnx/model.onnx", "openvino_model.xml", "tf_model.h5"])
def test_weights_that_only_another_library_reads(folder, file):
    (folder / "model.safetensors").unlink()
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes(b"")
    assert f"weights for another library only ({pathlib.Path(file).name})" in refusal(folder)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["onnx/model.onnx"], "is exported for another program (model.onnx)"),
        (["params.json", "consolidated.safetensors"], "is in its publisher's own format (params.json)"),
        (["consolidated.00.pth"], "is in its publisher's own format (consolidated.00.pth)"),
        (["model.safetensors"], "holds weights (model.safetensors) without their config.json"),
        (["tokenizer.json"], "not a model in transformers' format: it has no config.json"),
        (["checkpoint-10/config.json"], "name one of those in it, such as"),
    ],
)
def test_folders_of_other_formats_are_named_by_what_lies_there(files, words, tmp_path):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"")
    assert words in refusal(tmp_path)


def test_a_repository_in_the_hubs_cache_is_the_version_it_is_at(folder, tmp_path):
    repository = tmp_path / "models--org--its-model"
    for version in ("0" * 40, "1" * 40):
        shutil.copytree(folder, repository / "snapshots" / version)
    for named in (repository, repository / "snapshots"):
        assert "2 versions of it are there" in refusal(named)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    for named in (repository, repository / "snapshots", repository / "snapshots" / ("0" * 40)):
        assert load_pair(named).target_name == "org/its-model"


@pytest.mark.parametrize("address", ["https://huggingface.co/org/model", "https://hf.co/org/model/tree/main"])
def test_a_page_of_the_hub_names_its_model(address, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refusal(pathlib.PurePosixPath("org/model").as_posix()) == refusal(address)
    assert "is an address" in refusal("https://example.org/model")


# --- quantised weights ------------------------------------------------------------------------------------------------


def test_weights_quantised_by_mlx_are_called_so(folder):
    edit_config(folder, quantization_config={"group_size": 64, "bits": 4})
    assert "quantised by MLX, Apple's library" in refusal(folder)
    edit_config(folder, quantization_config={})
    assert "does not name the method" in refusal(folder)


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
