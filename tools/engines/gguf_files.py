"""The embedded models as GGUF files, with the tensors and keys that llama.cpp's own converter gives them.

Only what they need: Llamas and EAGLE-3 heads of Llama's layers without biases, and a byte-level BPE. The converter does
not know their tokenizer; it splits text as GPT-2's does.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor

#: Names in a model's files, less ``model.``, and in a GGUF file: of the whole, of an EAGLE-3 head, and of each layer.
WHOLE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
HEAD = {"fc": "fc", "input_norm": "enc.output_norm"}
LAYER = {"input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "post_attention_layernorm": "ffn_norm"}
LAYER |= {f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"} | {"self_attn.o_proj": "attn_output"}
LAYER |= {f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")}

#: What kind of token one is: an ordinary one, or one that only the program writes.
NORMAL, CONTROL = 1, 3


def write_gguf(folder: pathlib.Path, file: pathlib.Path, target: pathlib.Path, exact: bool = False) -> None:
    """Writes a model or an EAGLE-3 head in bfloat16, its norms in float32. target: whose tokenizer it has.

    exact: all in float32. The weights are the same, but beside those in bfloat16 llama.cpp rounds what they multiply.
    """
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    is_head = "draft_vocab_size" in settings
    writer = gguf.GGUFWriter(file, "eagle3" if is_head else "llama")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if exact else gguf.LlamaFileType.MOSTLY_BF16)
    _add_sizes(writer, settings)
    if is_head:
        _add_head(writer, settings)
    _add_tokenizer(writer, target, settings["vocab_size"])
    for name, tensor in _tensors(folder).items():
        _add_tensor(writer, _name_of(name), _paired(name, tensor, settings), exact)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, settings: dict[str, Any]) -> None:
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_head_count_kv(settings["num_key_value_heads"])
    writer.add_key_length(settings["head_dim"])
    writer.add_value_length(settings["head_dim"])
    writer.add_rope_dimension_count(settings["head_dim"])
    writer.add_rope_freq_base(settings["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    writer.add_vocab_size(settings["vocab_size"])


def _add_head(writer: gguf.GGUFWriter, settings: dict[str, Any]) -> None:
    """What an EAGLE-3 head says of its target: as speculators, llama.cpp counts hidden states, not layers."""
    writer.add_array("eagle3.target_layers", settings["eagle_aux_hidden_state_layer_ids"])
    writer.add_uint32("eagle3.target_hidden_size", settings["target_hidden_size"])
    writer.add_bool("eagle3.norm_before_residual", settings["norm_before_residual"])
    writer.add_bool("eagle3.norm_before_fc", settings["norm_before_fc"])


def _add_tokenizer(writer: gguf.GGUFWriter, folder: pathlib.Path, size: int) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | special
    tokens = sorted(ids, key=ids.__getitem__)
    assert len(tokens) == size and len(special) == 1, "every row of the embeddings has a token, and one of them ends"
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    (end,) = special.values()
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end)


def _tensors(folder: pathlib.Path) -> dict[str, Tensor]:
    """All weights of a model, by their names."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def _name_of(name: str) -> str:
    """model.layers.3.self_attn.q_proj.weight → blk.3.attn_q.weight"""
    own = name.removeprefix("model.").removesuffix(".weight")
    if layer := re.fullmatch(r"layers\.(\d+)\.(.+)", own):
        return f"blk.{layer[1]}.{LAYER[layer[2]]}.weight"
    return f"{(WHOLE | HEAD)[own]}.weight"


def _paired(name: str, tensor: Tensor, settings: dict[str, Any]) -> Tensor:
    """Queries and keys turn in pairs of neighbouring rows for llama.cpp, and in two halves for transformers."""
    heads = {"q_proj": settings["num_attention_heads"], "k_proj": settings["num_key_value_heads"]}
    count = next((count for one, count in heads.items() if name.endswith(f"{one}.weight")), None)
    return tensor if count is None else tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).reshape(tensor.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: Tensor, exact: bool) -> None:
    if exact or tensor.ndim == 1:
        writer.add_tensor(name, tensor.float().contiguous().numpy())
    else:
        bits = tensor.contiguous().view(torch.uint8).numpy()
        writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
