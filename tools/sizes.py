"""Pairs of real shapes with random weights, raced by an oracle: ``python -m tools.sizes``.

A dense model's passes take the same time whatever its weights, so this measures sizes whose weights are not at hand.
What such a pair writes means nothing; an oracle drafts, which is right as often as asked.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from specviz.bench.forced import measure_forced
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import PairPasses
from specviz.models.pass_timer import SHOWN_WIDTHS, settle_threads, time_passes
from specviz.models.placement import Place, automatic_dtype, device_named, dtype_named, set_libraries_aside
from specviz.models.preparation import prepare_passes
from specviz.models.refusals import refusing_out_of_memory
from specviz.models.sources import ModelSource
from specviz.models.weights import check_memory
from specviz.records.errors import SpecvizError

#: The oracle is right this often, and drafts this many tokens.
ALPHA, GAMMA = 0.8, 4

#: Positions the models are made for: those of Llama 3. A random model has no use for more.
POSITIONS = 8192


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers of a Llama that decide what a pass costs."""

    name: str
    layers: int
    hidden: int  # width of the hidden states
    heads: int  # query heads a layer
    kv_heads: int  # key and value heads a layer
    head_size: int
    mlp: int  # width between the last two matrices of a layer
    vocab: int
    tied: bool  # whether the output head is the table of embeddings

    @property
    def config(self) -> LlamaConfig:
        """For transformers. No token ends a text, so that every run is as long as it is asked to be."""
        return LlamaConfig(
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_size,
            intermediate_size=self.mlp,
            vocab_size=self.vocab,
            tie_word_embeddings=self.tied,
            max_position_embeddings=POSITIONS,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
            bos_token_id=None,
            eos_token_id=None,
        )


#: config.json of meta-llama/Meta-Llama-3-8B (Llama-3.1-8B has the same numbers): 8,030,261,248 parameters.
LLAMA_3_8B = ModelShape("Llama 3 8B", 32, 4096, 32, 8, 128, 14336, 128256, tied=False)

#: config.json of meta-llama/Llama-3.2-1B, without its scaling for long contexts: 1,235,814,400 parameters.
LLAMA_3_2_1B = ModelShape("Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128256, tied=True)


@dataclass(frozen=True, slots=True)
class Size:
    """A target and the draft model to time beside it."""

    name: str
    target: ModelShape
    draft: ModelShape


#: The smaller one first.
SIZES = (
    Size("1b", LLAMA_3_2_1B, replace(LLAMA_3_2_1B, name="4 layers of Llama 3.2 1B", layers=4)),
    Size("8b", LLAMA_3_8B, LLAMA_3_2_1B),
)


def make_pair(size: Size, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto") -> ModelPair:
    """Both models of a size with random weights, and a tokenizer that writes each token as its number.

    device, dtype: as for `load_pair`. On a CPU torch's number of threads is set to what suits the target.

    Raises SpecvizError (field ``size``, ``device`` or ``dtype``); memory is checked before anything is made.
    """
    place, wanted = device_named(device), dtype_named(dtype)
    sources = [
        ModelSource("size", f"{shape.name} (random weights)", "", {}, shape.config)
        for shape in (size.target, size.draft)
    ]
    full = sum(source.weight_bytes(torch.float32) for source in sources)
    chosen = wanted or automatic_dtype(Place(place), None, full)
    check_memory(sources, Place(place), chosen)

    def too_large() -> SpecvizError:
        return SpecvizError(
            "The size {name} does not fit into the memory of {device}: choose a smaller one.",
            "size",
            name=size.name,
            device=place,
        )

    with refusing_out_of_memory(too_large):
        target, draft = (make_model(shape, place, chosen) for shape in (size.target, size.draft))
    return ModelPair.of(
        target,
        draft,
        numbers_tokenizer(size.target.vocab),
        name=size.name,
        target_name=sources[0].name,
        draft_name=sources[1].name,
        passes=PairPasses(threads=settle_threads(target) if place.type == "cpu" else None),
    )


@torch.no_grad()
def make_model(shape: ModelShape, device: torch.device, dtype: torch.dtype, seed: int = 0) -> PreTrainedModel:
    """A model of this shape, made on the device and in the dtype it is to run in.

    The weights are transformers' initial ones, with standard deviation 0.02. Left at that, a random model's likeliest
    tokens lie so close together that half precision decides between them. So the layers are made to add little to the
    embedding, and the head to look for the embedding of the token before: the text counts upwards or, where head and
    embedding are one, repeats itself, and always by a wide margin.
    """
    model = _random_model(shape, device, dtype, seed)
    for layer in model.model.layers:
        for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
            last.weight.mul_((2 * shape.layers * shape.hidden) ** -0.5)
    if not shape.tied:
        model.lm_head.weight.copy_(model.model.embed_tokens.weight.roll(1, 0))
    return model


@dataclass(frozen=True, slots=True)
class FirstLayers:
    """A target whose later layers say little, and its first ones as a draft model: usually right, yet not always."""

    target: ModelShape
    draft_layers: int
    dtype: torch.dtype


#: By the name of the shape. The tiny one shows that things work, where there is no GPU.
FIRST_LAYERS = {
    "8b": FirstLayers(LLAMA_3_8B, 4, torch.bfloat16),
    "tiny": FirstLayers(ModelShape("tiny Llama", 6, 64, 4, 2, 16, 128, 4096, tied=False), 2, torch.float32),
}

#: The factors of the matrices with which a later layer adds to the hidden state, and of the head, whose likeliest
#: tokens would lie too close together.
QUIET, LOUD = 0.01, 6.0


def first_layers_pair(made: FirstLayers, tokenizer_folder: pathlib.Path) -> ModelPair:
    """Such a pair, made where `load_pair` would load it, and set up as it does.

    tokenizer_folder: a tokenizer whose ids are among the target's. No token ends a text.
    """
    set_libraries_aside()
    device = device_named("auto")
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # see `load_pair`
    target, draft = (
        _random_model(replace(made.target, layers=layers), device, made.dtype)
        for layers in (made.target.layers, made.draft_layers)
    )
    with torch.no_grad():
        target.lm_head.weight.mul_(LOUD)
        for layer in target.model.layers[made.draft_layers :]:
            for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
                last.weight.mul_(QUIET)
        draft.load_state_dict(target.state_dict(), strict=False)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.eos_token = None
    threads = settle_threads(target) if device.type == "cpu" else None
    return ModelPair.of(
        target,
        draft,
        tokenizer,
        target_name=f"{made.target.name} (random weights)",
        draft_name=f"its first {made.draft_layers} layers",
        passes=PairPasses(seconds_by_width=time_passes(target, SHOWN_WIDTHS, budget=0.5), threads=threads),
    )


def _random_model(shape: ModelShape, device: torch.device, dtype: torch.dtype, seed: int = 0) -> PreTrainedModel:
    """A model with transformers' initial weights, made on the device and in the dtype it is to run in."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(shape.config, dtype=dtype).eval()


def numbers_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """A tokenizer of `vocab` tokens, each written as its id: ``"17 18 19"``."""
    words = WordLevel({str(token): token for token in range(vocab)}, unk_token="0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))


def race(pair: ModelPair) -> str:
    """How fast the oracle is on a pair's passes as they are, in a line."""
    *_, found = measure_forced(pair, ALPHA, GAMMA)
    figures = found.figures
    return (
        f"size {pair.name}, {pair.passes.kind} passes, an oracle with α = {ALPHA}: {figures.speedup_measured:.2f}× "
        f"plain decoding ({figures.speedup_formula:.2f}× by the formula), {figures.tokens_per_second:.0f} tokens/s"
    )


def main() -> None:
    """Each size that memory holds, by plain passes and, where they can be prepared, by those."""
    for size in SIZES:
        try:
            pair = make_pair(size)
        except SpecvizError as refusal:
            print(f"size {size.name}: {refusal}")
            continue
        print(race(pair))
        refused = prepare_passes(pair).reasons
        print(f"size {size.name}: {refused['target']}" if "target" in refused else race(pair))
        pair.free()


if __name__ == "__main__":
    main()
