"""Small random models of real architectures, and folders that hold one: what the tests run instead of downloads.

Everything is built in code and follows from its seed. And what holds for all of them: `generated`, `assert_same_rows`.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import specviz
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.few_rows import FewRows
from specviz.passes.readers import new_cached_model
from specviz.passes.roles import DRAFT, TARGET, Role
from specviz.passes.static_passes import StaticPass
from specviz.records.runs import LengthChoice, Run
from specviz.records.settings import SamplingParams
from specviz.training.dspark import DSparkRecipe
from specviz.training.heads import Eagle3Recipe, MedusaRecipe, MtpRecipe
from specviz.training.parts import PartRecipe

#: Of trained parts, one for each of their drafters.
RECIPES = (MedusaRecipe, Eagle3Recipe, MtpRecipe, DSparkRecipe)

#: `generate` gives them positions that begin at 0, against their own definition.
OWN_POSITIONS = {"camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xmod"}
OWN_POSITIONS |= {"xlm-roberta", "xlm-roberta-xl"}

VOCABULARY = 128
POSITIONS = 256

END = "<|endoftext|>"

_TRANSFORMER = {"hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 4}
_TRANSFORMER |= {"max_position_embeddings": POSITIONS}
_GROUPED = _TRANSFORMER | {"num_key_value_heads": 2, "head_dim": 12}

#: Name -> (transformers' model type, what differs from its defaults).
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GROUPED),
    "mistral": ("mistral", _GROUPED | {"sliding_window": 16}),
    "qwen2": ("qwen2", _TRANSFORMER | {"num_key_value_heads": 2}),
    "qwen3": ("qwen3", _GROUPED),
    "gemma2": ("gemma2", _GROUPED | {"sliding_window": 16, "query_pre_attn_scalar": 12}),
    "gemma3": ("gemma3_text", _GROUPED | {"sliding_window": 16, "query_pre_attn_scalar": 12}),
    "gpt2": ("gpt2", {"n_embd": 48, "n_head": 4, "n_positions": POSITIONS}),
    "gpt_neox": ("gpt_neox", _TRANSFORMER),
}

_MOE = _GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DEEPSEEK = _TRANSFORMER | {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
_DEEPSEEK |= {"qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
_DEEPSEEK |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}

#: The same for others, old and new, with which few tests are run.
MORE_ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", _TRANSFORMER | {"is_decoder": True}),
    "biogpt": ("biogpt", _TRANSFORMER),
    "bloom": ("bloom", {"hidden_size": 48, "n_head": 4}),
    "codegen": ("codegen", {"n_embd": 48, "n_head": 4, "n_positions": POSITIONS, "rotary_dim": 8}),
    "cohere": ("cohere", _GROUPED),
    "cohere2": ("cohere2", _GROUPED | {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    "deepseek_v3": ("deepseek_v3", _DEEPSEEK),
    "deepseek_v32": ("deepseek_v32", _DEEPSEEK | {"index_n_heads": 2, "index_head_dim": 16}),
    "doge": ("doge", _GROUPED),
    "falcon": ("falcon", {"hidden_size": 48, "num_attention_heads": 4, "alibi": False}),
    "falcon_alibi": ("falcon", {"hidden_size": 48, "num_attention_heads": 4, "alibi": True}),
    "gemma": ("gemma", _GROUPED),
    "gemma4": (
        "gemma4_text",
        _GROUPED
        | {"global_head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY},
    ),
    "glm": ("glm", _GROUPED),
    "glm4": ("glm4", _GROUPED),
    "gpt_bigcode": ("gpt_bigcode", {"n_embd": 48, "n_head": 4, "n_positions": POSITIONS}),
    "gpt_neo": (
        "gpt_neo",
        {"hidden_size": 48, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16}
        | {"max_position_embeddings": POSITIONS},
    ),
    "gpt_neo_global": (
        "gpt_neo",
        {"hidden_size": 48, "num_heads": 4, "attention_types": [[["global"], 2]], "max_position_embeddings": POSITIONS},
    ),
    "gpt_oss": ("gpt_oss", _MOE | {"num_local_experts": 4, "sliding_window": 16, "rope_parameters": None}),
    "gptj": ("gptj", {"n_embd": 48, "n_head": 4, "n_positions": POSITIONS, "rotary_dim": 8}),
    "granite": ("granite", _TRANSFORMER | {"num_key_value_heads": 2}),
    "llama4": (
        "llama4_text",
        _GROUPED
        | {"attention_chunk_size": 16, "floor_scale": 12, "layer_types": ["chunked_attention", "full_attention"]}
        | {"no_rope_layers": [1, 0], "num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 64},
    ),
    "mistral_full": ("mistral", _GROUPED | {"sliding_window": None}),
    "mixtral": ("mixtral", _MOE | {"num_local_experts": 4}),
    "mpt": ("mpt", {"d_model": 48, "n_heads": 4, "max_seq_len": POSITIONS, "expansion_ratio": 2}),
    "olmo": ("olmo", _TRANSFORMER),
    "olmo2": ("olmo2", _TRANSFORMER),
    "olmoe": ("olmoe", _MOE | {"num_experts": 4}),
    "opt": ("opt", _TRANSFORMER | {"ffn_dim": 96, "word_embed_proj_dim": 48}),
    "phi": ("phi", _TRANSFORMER),
    "phi3": ("phi3", _TRANSFORMER | {"num_key_value_heads": 2, "sliding_window": None}),
    "qwen3_moe": ("qwen3_moe", _MOE | {"num_experts": 4}),
    "roberta": ("roberta", _TRANSFORMER | {"is_decoder": True}),
    "smollm3": ("smollm3", _TRANSFORMER | {"num_key_value_heads": 2}),
    "stablelm": ("stablelm", _TRANSFORMER | {"hidden_size": 64, "num_key_value_heads": 2}),
    "starcoder2": ("starcoder2", _TRANSFORMER | {"num_key_value_heads": 2, "sliding_window": None}),
    "xglm": ("xglm", {"d_model": 48, "ffn_dim": 96, "attention_heads": 4, "max_position_embeddings": POSITIONS}),
}

#: Families whose checkpoints bring multi-token-prediction modules along (`mtp_folders`).
WITH_MODULES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": ("deepseek_v3", _DEEPSEEK),
    "glm4_moe": ("glm4_moe", _MOE | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}),
    "mellum": ("mellum", _GROUPED | {"sliding_window": 8}),
}

_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
_DELTA |= {"linear_key_head_dim": 12, "linear_value_head_dim": 12}
_LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention"]}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 24, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2}
_QWEN_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_QWEN_MOE |= {"shared_expert_intermediate_size": 32}
_GRANITE = _TRANSFORMER | _MAMBA | {"num_key_value_heads": 2, "num_local_experts": 0, "shared_intermediate_size": 96}

#: Families with a running state; of those with a window alone (`lfm2`) and of the dense Granite, transformers says so.
WITH_STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("qwen3_next", _GROUPED | _DELTA | _LINEAR_FIRST | _QWEN_MOE),
    "qwen3_5": ("qwen3_5_text", _GROUPED | _DELTA | _LINEAR_FIRST),
    "qwen3_5_moe": ("qwen3_5_moe_text", _GROUPED | _DELTA | _LINEAR_FIRST | _QWEN_MOE),
    "olmo_hybrid": ("olmo_hybrid", _GROUPED | _DELTA | _LINEAR_FIRST),
    "lfm2": ("lfm2", _GROUPED | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": (
        "lfm2_moe",
        _MOE | {"layer_types": ["conv", "full_attention"], "num_experts": 4, "num_dense_layers": 1},
    ),
    "nemotron_h": (
        "nemotron_h",
        _GROUPED
        | {"layers_block_type": ["linear_attention", "full_attention"], "mamba_num_heads": 4, "mamba_head_dim": 24}
        | {"ssm_state_size": 16, "n_groups": 1, "expand": 2},
    ),
    "granite_hybrid": ("granitemoehybrid", _GRANITE | {"layer_types": ["mamba", "attention"]}),
    "granite_dense": ("granitemoehybrid", _GRANITE | {"layer_types": ["attention", "attention"]}),
    "falcon_h1": ("falcon_h1", _GROUPED | _MAMBA | {"mamba_d_ssm": 96}),
    "bamba": ("bamba", _TRANSFORMER | _MAMBA | {"num_key_value_heads": 2, "attn_layer_indices": [1]}),
    "mamba2": ("mamba2", {"hidden_size": 48, "state_size": 16, "num_heads": 4, "head_dim": 24, "n_groups": 1}),
    "zamba2": (
        "zamba2",
        _TRANSFORMER
        | {"num_key_value_heads": 2, "layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 16, "n_mamba_heads": 4}
        | {"mamba_headdim": 24, "mamba_ngroups": 1, "num_mem_blocks": 1, "adapter_rank": 8},
    ),
}

#: Those that transformers reads on from a state token by token only.
ONE_BY_ONE: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", {"hidden_size": 48, "state_size": 8}),
    "falcon_mamba": ("falcon_mamba", {"hidden_size": 48, "state_size": 8}),
    "jamba": (
        "jamba",
        _TRANSFORMER
        | {"num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}
        | {"num_experts_per_tok": 1, "mamba_d_state": 8, "use_mamba_kernels": False},
    ),
}


def tiny_model(
    architecture: str, *, layers: int = 2, seed: int = 3, vocab: int = VOCABULARY, **overrides: Any
) -> PreTrainedModel:
    """A random model in float32, in evaluation mode, whose greedy text wanders instead of repeating one token.

    seed: the default is one with which none of the architectures falls into a rut.
    overrides: configuration values, such as ``sliding_window=8`` or ``eos_token_id=5``.
    """
    model_type, settings = (ARCHITECTURES | MORE_ARCHITECTURES | WITH_MODULES | WITH_STATES | ONE_BY_ONE)[architecture]
    settings = dict(settings, vocab_size=vocab, num_hidden_layers=layers, tie_word_embeddings=False)
    settings |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if architecture in ("gemma2", "gemma3"):
        # Both kinds of layer, whatever the depth.
        settings["layer_types"] = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**settings | overrides))
        spread(model)
    return model.eval()


@torch.no_grad()
def spread(model: PreTrainedModel) -> None:
    """Weights wide enough that attention and feed-forward layers, not the last token's embedding alone, decide."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.normal_(0, 2.5 / parameter.shape[-1] ** 0.5)


@torch.no_grad()
def tiny_pair(architecture: str, *, noise: float = 0.07, seed: int = 3, **settings: Any) -> ModelPair:
    """A target and a draft model that agrees with it often and not always: the target with noise on its weights.

    noise: standard deviation relative to each weight matrix's own; 0 makes both models equal.
    """
    target, draft = (tiny_model(architecture, seed=seed, **settings) for _ in range(2))
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in draft.parameters():
        if parameter.dim() == 2:
            parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return ModelPair.of(target, draft, byte_tokenizer(), name=f"tiny {architecture}")


@torch.no_grad()
def stirred(recipe: type[PartRecipe], target: PreTrainedModel, seed: int = 0) -> PartRecipe:
    """A recipe whose part has random weights that all matter: as it is made, some of its branches add nothing yet."""
    made, generator = recipe(target), torch.Generator().manual_seed(seed)
    for parameter in made.student.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return made


def with_heads(pair: ModelPair, seed: int = 0) -> ModelPair:
    """The pair, with trained parts of random weights: they guess badly and are as exact as any."""
    made = {recipe.name: stirred(recipe, pair.target, seed + place) for place, recipe in enumerate(RECIPES)}
    parts = {name: recipe.student.eval().requires_grad_(False) for name, recipe in made.items()}
    return dataclasses.replace(pair, parts=parts, passes=PairPasses())


def unprepared(
    model: PreTrainedModel, feature_layers: tuple[int, ...] = (), few_rows: FewRows | None = None
) -> FastPasses:
    """The model's passes over static buffers, operation by operation."""
    return FastPasses.unprepared(StaticPass(model, feature_layers, few_rows))


class InTurn:
    """Draft lengths in turn, plain steps among them."""

    drafts_chain = False

    def __init__(self, depths: Sequence[int] = (3, 3, 3, 0, 2, 0, 0, 1)):
        self.depths, self.turn = depths, -1

    def choose(self) -> LengthChoice:
        self.turn += 1
        return LengthChoice(self._depth(self.turn))

    stand = choose

    @property
    def stands(self) -> int:
        turns = itertools.count(self.turn + 1)
        return sum(1 for _ in itertools.takewhile(lambda turn: self._depth(turn) == self._depth(self.turn), turns))

    def _depth(self, turn: int) -> int:
        return self.depths[turn % len(self.depths)]

    def observe(self, depth: int, accepted: int, seconds: tuple[float, float] | None) -> None:
        """Goes on whatever came of it."""


def generated(pair: ModelPair, prompt: list[int], max_new_tokens: int, use_cache: bool = True) -> list[int]:
    """transformers' own greedy continuation."""
    if pair.target.config.model_type in OWN_POSITIONS:
        ids = list(prompt)
        while len(ids) < len(prompt) + max_new_tokens and not pair.eos_ids.intersection(ids[len(prompt) :][-1:]):
            ids.append(pair.target(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax().item())
        return ids[len(prompt) :]
    asked = {"max_new_tokens": max_new_tokens, "do_sample": False, "use_cache": use_cache, "pad_token_id": 0}
    config = GenerationConfig(**asked, eos_token_id=list(pair.eos_ids) or -1)  # None would be the model's own
    ids = torch.tensor([prompt])
    output = pair.target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return output[0, len(prompt) :].tolist()


def greedy_run(pair: ModelPair, prompt: list[int], max_new_tokens: int = 20, **settings: Any) -> Run:
    """A greedy run, whose text is transformers' own."""
    run = specviz.run(pair, prompt, sampling=SamplingParams(temperature=0), max_new_tokens=max_new_tokens, **settings)
    assert list(run.token_ids) == generated(pair, prompt, max_new_tokens)
    return run


@torch.inference_mode()
def assert_same_rows(cached: CachedModel, ids: list[int], close: float = 1e-4) -> None:
    """Whatever a cache has been through, it holds what one pass over the text's first tokens leaves in a fresh one."""
    fresh = new_cached_model(cached.model, Stopwatch(cached.device))
    if not cached.length:  # a running state that was put back to where a text begins
        return
    fresh.forward(torch.tensor(ids[: cached.length], device=cached.device), rows_wanted=1)
    fresh.rewind(cached.length)
    held, due = ([*one.kv(), *one.states()] for one in (cached, fresh))
    for rows, expected in zip(held, due, strict=True):
        # A sliding window's own cache holds the last of the rows only.
        torch.testing.assert_close(rows[:, :, -expected.shape[2] :], expected, rtol=close, atol=close)


def byte_tokenizer(merges: tuple[tuple[str, str], ...] = (), chat_template: str | None = None) -> Any:
    """A byte-level tokenizer of 128 tokens: the end token, ASCII, and a few bytes to write an emoji with.

    merges: pairs joined into further tokens, from id 128 on, in the byte-level alphabet (a space is "Ġ").
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [symbol for symbol in alphabet if symbol.isascii()]
    # The space and the bytes of U+1F600 and of "é" come first among the others.
    wanted = [_symbol(byte) for byte in b" \n" + "😀é".encode()]
    rest = [symbol for symbol in alphabet if symbol not in printable and symbol not in wanted]
    symbols = [*printable, *wanted, *rest][: VOCABULARY - 1]
    vocabulary = {END: 0} | {symbol: index + 1 for index, symbol in enumerate(symbols)}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END, chat_template=chat_template
    )


def sentencepiece_tokenizer() -> Any:
    """A tokenizer in the manner of Llama 2: "▁" for spaces, 256 byte tokens to fall back on, first space dropped."""
    words = ["▁", "▁the", "▁a", "▁tale", "tale", "▁▁", "é", "😀", *"abcdefghijklmnopqrstuvwxyz", ".", "\ufffd"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [f"<0x{byte:02X}>" for byte in range(256)] + words:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def save_model(folder: pathlib.Path, model: PreTrainedModel, tokenizer: Any = None) -> pathlib.Path:
    """Writes a folder in transformers' format; without a tokenizer, a `byte_tokenizer`. Returns the folder."""
    model.save_pretrained(folder)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return folder


def save_pair(
    folder: pathlib.Path, architecture: str = "llama", *, dtype: torch.dtype = torch.float32, **settings: Any
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes the models of a `tiny_pair` to two folders below `folder`: (target, draft)."""
    pair = tiny_pair(architecture, **settings)
    return (
        save_model(folder / "target", pair.target.to(dtype), pair.tokenizer),
        save_model(folder / "draft", pair.draft.to(dtype), pair.tokenizer),
    )


def edit_config(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    """Changes values in a saved model's config.json. Returns the folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def _symbol(byte: int) -> str:
    """How the byte-level alphabet writes a byte: visible ones as themselves, the others from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte if byte in visible else 0x100 + [b for b in range(256) if b not in visible].index(byte))


def passes_called_compiled(pair: ModelPair) -> dict[Role, FastPasses]:
    """Passes over static buffers, operation by operation: all but their speed is as if they had been compiled."""
    models = {TARGET: pair.target, DRAFT: pair.draft}
    return {role: FastPasses(one := StaticPass(model), one, "compiled") for role, model in models.items()}
