"""Pairs load from folders and from the Hub's cache, and what cannot run is refused in a sentence at its field."""

import gc
import itertools
import json
import math
import pathlib
import shutil
import sys
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from huggingface_hub import HfApi, constants
from huggingface_hub import errors as hub
from refusal import refusal, refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import (
    ARCHITECTURES,
    END,
    byte_tokenizer,
    edit_config,
    greedy_run,
    save_model,
    save_pair,
    tiny_model,
    tiny_pair,
)
from transformers import modeling_utils
from transformers.utils import logging as transformers_logging

import specviz
from specviz.decoding.request import prepare
from specviz.models import loading, pass_timer, placement, sources
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair, logit_width
from specviz.models.pass_timer import SHOWN_WIDTHS, settle_kernel_threads, settle_threads
from specviz.models.weights import unmapped
from specviz.records.errors import SpecvizError
from specviz.records.settings import RunSettings, SamplingParams
from specviz.records.words import words


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of a target and its draft; tests copy what they damage."""
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def folder(saved, tmp_path):
    """A private copy of the target's folder."""
    return pathlib.Path(shutil.copytree(saved[0], tmp_path / "copy"))


# -------------------------------------------------------------------------------------------------------------- loading


def test_the_embedded_pair_needs_no_name_and_no_network_and_tells_and_times_what_it_does(monkeypatch):
    monkeypatch.setattr(HfApi, "model_info", lambda *a, **k: pytest.fail("asked the Hub"))
    steps = []
    pair = load_pair(device="cpu", progress=lambda *step: steps.append(step))
    assert pair.vocab_size == 4096 and pair.context_length == 1024 and pair.eos_ids == {0}
    assert pair.target.dtype == pair.draft.dtype == pair.dtype
    assert pair.info().target_parameters > pair.info().draft_parameters > 1_000_000
    assert not pair.target.training and not pair.draft.training
    fractions, sentences = zip(*steps)
    assert list(fractions) == sorted(fractions) and fractions[0] == 0 and fractions[-1] == 1
    assert all(sentence.endswith(".") for sentence in sentences)
    assert sorted(pair.passes.seconds_by_width) == sorted(SHOWN_WIDTHS)
    assert all(0 < seconds < 5 for seconds in pair.passes.seconds_by_width.values())
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


@pytest.mark.parametrize(
    "written, threads", [("max 100000", 8), ("200000 100000\n", 2), ("50000 100000", 1), (None, 8)]
)
def test_a_container_that_may_take_two_cores_of_eight_runs_two_threads(written, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(pass_timer, "_QUOTA", tmp_path / "cpu.max")
    if written is not None:
        (tmp_path / "cpu.max").write_text(written, encoding="ascii")
    assert pass_timer._within_quota(8) == threads


@pytest.mark.parametrize(
    "seconds, help_there, settled",
    [
        ({4: 1.0, 2: 1.02, 1: 1.9}, 1, 2),
        ({4: 1.0, 2: 1.6, 1: 3.1}, 1, 4),
        ({4: 1.03, 2: 1.01, 1: 1.0}, 1, 1),
        ({4: 1.0, 2: 1.0, 1: 1.0}, 0.3, 4),  # nobody came: nothing was tried
    ],
)
def test_kernels_use_the_fewest_threads_that_are_fast_though_others_disturb_most_passes(
    seconds, help_there, settled, monkeypatch
):
    used, passes = [], itertools.count()

    class Timer:
        widths = (1, 5)

        def __init__(self, *given, **named):
            pass

        def seconds(self, width):
            disturbed = next(passes) % 7  # all but every seventh, and the more, the more threads there are
            return width * seconds[used[-1]] + disturbed * used[-1]

    monkeypatch.setattr(pass_timer, "_ALL_THREADS", 4)
    monkeypatch.setattr(pass_timer, "_SMALL_BYTES", 0)
    monkeypatch.setattr(pass_timer, "_SETTLING", 0.05)
    monkeypatch.setattr(pass_timer, "PassTimer", Timer)
    monkeypatch.setattr(pass_timer.kernel_library, "use_threads", used.append)
    monkeypatch.setattr(pass_timer.kernel_library, "help_since", lambda: help_there * (1 - 1 / used[-1]))
    assert settle_kernel_threads(tiny_model("llama"), None) == used[-1] == settled


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_embedded_pair_has_its_trained_parts_in_every_precision(dtype):
    pair = load_pair(dtype=dtype, device="cpu")
    assert set(pair.parts) == {"medusa", "eagle", "mtp", "parallel"} and not pair.flaws


#: Whether the processor multiplies bfloat16, the checkpoint's precision, whether float32 has room, and what is read.
AUTOMATIC = [
    *((True, stored, True, torch.bfloat16) for stored in ("float32", "float16")),
    *((False, stored, True, torch.float32) for stored in ("float32", "float16")),
    (False, "float32", False, torch.bfloat16),
    (False, "float16", False, torch.float16),
]


@pytest.mark.parametrize("multiplies, stored, room, dtype", AUTOMATIC)
def test_processor_and_memory_decide_on_auto_dtype_and_each_model_is_read_once(
    folder, multiplies, stored, room, dtype, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: multiplies)
    if not room:
        monkeypatch.setattr(placement, "memory_at_hand", lambda: tiny_model("llama").num_parameters() * 4)
    read, loaded = [], sources.AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        sources.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: read.append(k["dtype"]) or loaded(*a, **k)
    )
    edit_config(folder, dtype=stored)
    assert load_pair(folder, device="cpu").dtype == dtype and read == [dtype]


def test_a_model_that_overflows_in_float16_is_sent_to_float32_where_it_is_right(folder):
    """Trained in bfloat16, which reaches as far as float32: on GPUs without it `auto` is float16."""
    wide = load_file(folder / "model.safetensors")
    wide["model.layers.0.mlp.down_proj.weight"] *= 1e6
    save_file(wide, folder / "model.safetensors", metadata={"format": "pt"})
    with refused("dtype", "overflows in this precision, or its weights are damaged. Try float32."):
        specviz.run(load_pair(folder, device="cpu", dtype="float16"), "Once", drafter=None, max_new_tokens=4)
    assert specviz.run(load_pair(folder, device="cpu", dtype="float32"), "Once", drafter=None, max_new_tokens=4).text


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16])
def test_both_models_take_the_dtype_asked_for(saved, dtype):
    pair = load_pair(*saved, dtype=dtype, device="cpu")
    name = str(dtype).removeprefix("torch.")
    assert pair.dtype == pair.target.dtype == pair.draft.dtype == getattr(torch, name) and pair.info().dtype == name


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


@pytest.mark.parametrize("draft", [5, [5], [None]])
def test_a_draft_that_is_no_name_is_refused(saved, draft):
    with refused("draft", "names no model"):
        load_pair(saved[0], draft)


def test_a_target_alone_is_a_pair_without_a_draft(saved):
    pair = load_pair(saved[0], dtype="float32")
    assert pair.draft is None
    assert pair.info().draft is None and pair.info().draft_parameters is None
    assert pair.name == "target" and pair.translation is None


def test_padded_vocabularies_of_one_tokenizer_work(saved, tmp_path):
    padded = save_model(tmp_path / "padded", tiny_model("llama", vocab=160))
    pair = load_pair(padded, saved[1], dtype="float32")
    assert pair.vocab_size == 160 and logit_width(pair.draft) == 128
    assert pair.texts[150] == "<id 150>"
    other = load_pair(saved[0], padded, dtype="float32")
    assert other.vocab_size == 128
    for one in (pair, other):
        greedy_run(one, [5, 17, 33, 8], 40)


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


# ----------------------------------------------------------------------------------------------------- device and dtype


@pytest.mark.parametrize(
    "device, gpus, words",
    [
        ("cuda", 0, "no CUDA device"),
        ("cuda:3", 1, "this machine has 1"),
        ("toaster", 0, "is not a device"),
        ("mps", 0, "not on mps"),  # which cannot draw exactly
        (None, 0, "not a device"),
    ],
)
def test_a_device_that_is_not_there_is_refused(device, gpus, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert words in refusal("device", load_pair, device=device)


@pytest.mark.parametrize("dtype", ["float12", "int8", torch.float64, None])
def test_other_dtypes_are_refused_with_the_ones_there_are(dtype):
    assert "float32, bfloat16, float16" in refusal("dtype", load_pair, dtype=dtype)


# ------------------------------------------------------------------------------------------------- settings and weights


def test_more_layers_than_the_configuration_promises_may_be_modules(folder):
    edit_config(
        folder, num_hidden_layers=1, layer_types=None, num_nextn_predict_layers=1
    )  # as GLM and DeepSeek store their multi-token-prediction modules
    assert load_pair(folder).target.config.num_hidden_layers == 1


def test_weights_that_change_nothing_are_left_out(folder):
    names = ["model.layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.patch.weight", "mtp.fc.weight"]
    expected = load_pair(folder).target.state_dict()
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(6) for name in names}, path, {"format": "pt"})
    given = load_pair(folder).target.state_dict()
    assert all(torch.equal(given[name], weight) for name, weight in expected.items())


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
        ({"do_sample": True, "cache_implementation": "x", "top_k": 64}, SamplingParams(1, 64)),
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
        message = refusal("draft", load_pair, saved[0], stranger)
        assert f"share only {count} of the draft model's" in message and f"stranger {count} and target" in message


# --------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    "models, dtype, field, words",
    [(0, "float32", "target", "half precision"), (1.5, "bfloat16", "draft", "draft needs about")],
)
def test_too_little_memory_is_found_out_before_loading(saved, models, dtype, field, words, monkeypatch):
    monkeypatch.setattr(placement, "memory_at_hand", lambda: 1000 + 2 * models * tiny_model("llama").num_parameters())
    monkeypatch.setattr(sources.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("loaded"))
    message = refusal(field, load_pair, *saved, dtype=dtype, device="cpu")
    assert "needs about" in message and "are free" in message and words in message


@pytest.mark.parametrize("error", [MemoryError(), OSError(12, "Cannot allocate memory")])
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


@pytest.mark.parametrize("place", ["try_model", "time_passes", "load_parts"])
def test_where_the_weights_alone_fit_that_is_a_sentence_and_nothing_stays_behind(saved, monkeypatch, place):
    real, taken, threads = sources.AutoModelForCausalLM.from_pretrained, [], torch.get_num_threads()

    def noted(location, **options):
        loaded = real(location, **options)
        taken.append(weakref.ref(loaded[0]))
        return loaded

    def full(*given, **named):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sources.AutoModelForCausalLM, "from_pretrained", noted)
    monkeypatch.setattr(loading, place, full)
    monkeypatch.setattr(pass_timer, "_ALL_THREADS", threads + 3)
    with refused("target", "but leave no room for a pass: choose a smaller model") as caught:
        load_pair(*saved, dtype="float32", device="cpu")
    gc.collect()
    assert [reference() for reference in taken] == [None, None] and torch.get_num_threads() == threads
    assert words("de").error(caught.value) != str(caught.value)


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


# -------------------------------------------------------------------------------------------------------------- the Hub


@pytest.fixture
def hub_cache(saved, tmp_path, monkeypatch):
    """A download of org/tiny in the Hub's own cache layout, and no network beyond it."""
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(saved[0], snapshot)
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(HfApi, "model_info", raising(hub.HTTPError("Name or service not known")))
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
    assert "the Hub cannot be reached" in refusal("target", load_pair, "org/other")
    assert "the Hub cannot be reached" in refusal("draft", load_pair, "org/tiny", "org/other")


#: What the Hub answers when it is asked for the model, or with its first file, and what is made of it.
ANSWERS = [
    (False, hub_error(hub.RepositoryNotFoundError), "There is no model org/new on the Hub"),
    (False, hub_error(hub.GatedRepoError, 403), "licence at https://huggingface.co/org/new and set HF_TOKEN"),
    (False, hub_error(hub.RevisionNotFoundError), "no such revision"),
    (False, hub_error(hub.HfHubHTTPError, 401), "check HF_TOKEN"),
    (False, hub_error(hub.HfHubHTTPError, 503), "answered 503"),
    (True, hub_error(hub.GatedRepoError, 403), "is gated"),
    (True, hub_error(hub.RemoteEntryNotFoundError), "one of its files is missing"),
    (True, hub.HTTPError("reset by peer"), "connection to the Hub broke"),
]


@pytest.mark.parametrize("with_a_file, error, words", ANSWERS)
def test_the_hubs_refusals_are_sentences(with_a_file, error, words, monkeypatch):
    def wrapped(*args, **settings):
        raise OSError("wrapped, as transformers does") from error

    answer = (lambda *a, **k: types.SimpleNamespace(sha="1" * 40)) if with_a_file else raising(error)
    monkeypatch.setattr(HfApi, "model_info", answer)
    monkeypatch.setattr(sources.AutoConfig, "from_pretrained", wrapped)
    assert words in refusal("target", load_pair, "org/new")


@pytest.mark.parametrize("name", ["two words", "a..b/c", "-x/y", "org/<script>"])
def test_a_malformed_id(name):
    assert "neither a folder here nor a Hub id" in refusal("target", load_pair, name)


def test_all_files_come_from_one_commit_with_the_token_given(hub_cache, monkeypatch):
    asked, told = [], []
    real = sources.AutoConfig.from_pretrained

    def model_info(self, name, revision=None, timeout=None):
        asked.append((name, revision, self.token))
        return types.SimpleNamespace(sha="0" * 40)

    monkeypatch.setattr(HfApi, "model_info", model_info)
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


def test_a_default_device_of_torchs_is_refused_before_anything_is_made_there(saved):
    pair = tiny_pair("llama")

    def with_one_set():
        torch.set_default_device("meta")
        with refused("device", 'set_default_device\\("cpu"\\) first'):
            load_pair(*saved)
        with refused("device", "set_default_device"):
            specviz.run(pair, [3, 5, 7])
        torch.set_default_device("cpu")
        assert specviz.run(load_pair(*saved), [3, 5, 7]).rounds

    # Each thread has a default device of its own.
    with ThreadPoolExecutor() as pool:
        pool.submit(with_one_set).result()
