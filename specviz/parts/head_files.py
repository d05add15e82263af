"""The files of trained parts, and of the target that they belong to: as its fingerprint and its stored weights say."""

import hashlib
import json
import os
import pathlib
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import TypeVar

import torch
from huggingface_hub import save_torch_state_dict, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from specviz.parts.heads import Head, MedusaHeads
from specviz.passes.devices import home_of, whole_parameter
from specviz.records.errors import SpecvizError

#: How many rows of the input embeddings go into a fingerprint.
_SAMPLED_ROWS = 64

#: A repository on the Hub takes files up to 10 MB without Git LFS.
_SHARD = "9MB"

#: One of our own heads; any head.
Own = TypeVar("Own", bound=Head | MedusaHeads)
AnyHead = TypeVar("AnyHead", bound=nn.Module)


@torch.no_grad()
def fingerprint(target: PreTrainedModel) -> str:
    """Identifies a target by its sizes and a sample of its embeddings and norms, as 64 hexadecimal digits.

    Quantised loads keep these as they are. A target whose other matrices alone were tuned has the same fingerprint: its
    heads still fit in shape and stay exact.

    The sample is rounded to bfloat16, so that a checkpoint has one fingerprint in float32 and in bfloat16. Loading in
    float16 rounds differently: there the sample is read from the checkpoint's files.
    """
    config = target.config.get_text_config()
    table = target.get_input_embeddings().weight
    names = dict(sorted(target.named_parameters()))
    # Tied, it has further names.
    tied = [name for name, parameter in target.named_parameters(remove_duplicate=False) if parameter is table]
    embeddings = whole_parameter(target, next(name for name in names if name in tied))
    sizes = (config.model_type, config.hidden_size, config.num_hidden_layers, len(embeddings))
    digest = hashlib.sha256(json.dumps(sizes).encode())
    every = [place * len(embeddings) // _SAMPLED_ROWS for place in range(_SAMPLED_ROWS)]
    sample = [(tied, embeddings[every], every)]
    sample += [
        ([name], whole_parameter(target, name), None)
        for name, parameter in names.items()
        if parameter.dim() == 1 and parameter.is_floating_point()
    ]
    stored = StoredWeights(target) if any(loaded.dtype == torch.float16 for _, loaded, _ in sample) else None
    for known_as, loaded, rows in sample:
        weights = loaded.cpu()
        if weights.dtype == torch.float16:
            weights = stored.unrounded(known_as, weights, rows)
        digest.update(weights.to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def save(head: Head | MedusaHeads, folder: str | os.PathLike[str], fingerprint: str) -> None:
    """Writes `config.json` and the weights in bfloat16 as safetensors, in shards below 9 MB, to `folder`.

    fingerprint: of the target it was trained on.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"kind": head.kind, "target_fingerprint": fingerprint} | asdict(head.sizes)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: weight.detach().to("cpu", torch.bfloat16) for name, weight in head.state_dict().items()}
    stored = {
        name: weights[own] if count == 1 else weights[own].unflatten(0, (count, -1))
        for name, (own, count) in head.stored.items()
        if own in weights
    }
    save_torch_state_dict(stored, folder, max_shard_size=_SHARD)


def load(head_class: type[Own], folder: str | os.PathLike[str], target: PreTrainedModel) -> Own:
    """The head of this class from `folder`, in evaluation mode, on the target's device and in its dtype.

    Raises SpecvizError (field ``drafter``) if it is missing, damaged, or belongs to another target.
    """
    folder, kind = pathlib.Path(folder), head_class.kind
    names = {"kind": kind, "folder": folder, "target": target.name_or_path or "FOLDER"}
    try:
        config = json.loads((folder / "config.json").read_text())
        if (config.pop("kind"), config.pop("target_fingerprint")) != (kind, fingerprint(target)):
            raise SpecvizError(
                "The trained part in {folder} belongs to another target; train one for this target: python -m "
                "specviz.training {kind} --target {target} --text FILE",
                "drafter",
                **names,
            )
        head = head_class(head_class.sizes_class(**config | {"feature_layers": tuple(config["feature_layers"])}))
        head.load_state_dict(_weights_in(folder, head.stored))
    except FileNotFoundError as error:
        raise SpecvizError(
            "This target has no {kind} weights in {folder}; train one: "
            "python -m specviz.training {kind} --target {target} --text FILE",
            "drafter",
            **names,
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        if isinstance(error, SpecvizError):
            raise
        raise SpecvizError(
            "The {kind} weights in {folder} are damaged: copy them again, or train one: "
            "python -m specviz.training {kind} --target {target} --text FILE",
            "drafter",
            **names,
        ) from error
    return ready(head, target)


def ready(head: AnyHead, target: PreTrainedModel) -> AnyHead:
    """The head in evaluation mode, on the target's device and in its dtype."""
    for weight in head.parameters():
        # Not the frequencies of rotary positions, which half precision would spoil.
        weight.data = weight.data.to(target.dtype)
    return head.eval().requires_grad_(False).to(home_of(target))


def _weights_in(folder: pathlib.Path, stored: dict[str, tuple[str, int]]) -> dict[str, Tensor]:
    """The weights in the safetensors files of `folder`, by the head's own names."""
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise FileNotFoundError(folder)
    weights: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in load_file(file).items():
            own, count = stored[name]
            weights[own] = tensor if count == 1 else tensor.flatten(0, 1)
    if "embed_tokens.weight" in weights:
        weights["lm_head.weight"] = weights["embed_tokens.weight"]  # tied
    return weights


class StoredWeights:
    """The tensors in the safetensors files, or the GGUF file, that a model was loaded from; none of a model made in
    memory."""

    def __init__(self, model: PreTrainedModel):
        self.folder = _folder_of(model)
        self._unpacked = None
        if self.folder is not None and self.folder.is_file():
            self._unpacked = _GgufWeights(self.folder, model.config.get_text_config().num_hidden_layers)
        self._files: dict[str, pathlib.Path] = {}  # by the tensor's name there
        for file in () if self.folder is None else sorted(self.folder.glob("model*.safetensors")):
            with safe_open(file, "pt") as opened:
                self._files |= dict.fromkeys(opened.keys(), file)

    @property
    def names(self) -> Collection[str]:
        """The tensors' names in the files."""
        return self._files.keys()

    def dtypes(self) -> dict[str, str]:
        """Each tensor's dtype, as safetensors files name it: ``BF16``."""
        found = {}
        for file in set(self._files.values()):
            with safe_open(file, "pt") as opened:
                found |= {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
        return found

    def unrounded(self, names: Sequence[str], loaded: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """The values that were rounded to `loaded`, on the CPU: a parameter or these `rows` of it, in the file's dtype.

        names: the model's for the parameter; tied ones have several names, of which the file may know any.
        Files may use other prefixes. Whatever is found must give `loaded` when it is rounded, or `loaded` itself is
        returned: the parameter may have been changed since, or converted.
        """
        if self._unpacked is not None:
            found = (self._unpacked.read(name, rows) for name in names)
            # Gemma's norms are stored with the 1 that its model adds.
            candidates = (weights for one in found if one is not None for weights in (one, one - 1))
            return next((one for one in candidates if torch.equal(one.to(loaded.dtype), loaded)), loaded)
        for name in self._alike(names):
            with safe_open(self._files[name], "pt") as opened:
                part = opened.get_slice(name)
                if rows is not None and max(rows) >= part.get_shape()[0]:
                    continue
                stored = part[:] if rows is None else torch.cat([part[row : row + 1] for row in rows])
            if torch.equal(stored.to(loaded.dtype), loaded):
                return stored
        return loaded

    def _alike(self, names: Sequence[str]) -> list[str]:
        """The files' names that share most of their last components with one of `names`."""
        shared = {stored: max(_shared_components(stored, name) for name in names) for stored in self._files}
        most = max(shared.values(), default=0)
        return [stored for stored, count in shared.items() if count == most > 0]


class _GgufWeights:
    """The tensors of a GGUF file by transformers' names. layers: of the model in it."""

    def __init__(self, file: pathlib.Path, layers: int):
        from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map  # an optional package

        reader = GGUFReader(file)
        kind = reader.get_field("general.architecture").contents()
        self._names = get_tensor_name_map(next(key for key, name in MODEL_ARCH_NAMES.items() if name == kind), layers)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def read(self, name: str, rows: Sequence[int] | None) -> Tensor | None:
        """A tensor, or these `rows` of it, in float32; None if it is not there."""
        from gguf import dequantize

        stem, _, suffix = name.rpartition(".")
        tensor = self._tensors.get(f"{self._names.get_name(stem)}.{suffix}")
        if tensor is None or (rows is not None and max(rows) >= len(tensor.data)):
            return None
        return torch.tensor(dequantize(tensor.data if rows is None else tensor.data[list(rows)], tensor.tensor_type))


def _folder_of(model: PreTrainedModel) -> pathlib.Path | None:
    """Where the files lie, those of a model from the Hub in its cache; of an unpacked GGUF file, the file."""
    if not model.name_or_path:
        return None
    folder = pathlib.Path(model.name_or_path).expanduser()
    commit = getattr(model.config, "_commit_hash", None)
    if folder.is_dir() or commit is None:
        return folder
    config = try_to_load_from_cache(model.name_or_path, "config.json", revision=commit)
    return pathlib.Path(config).parent if isinstance(config, str) else None


def _shared_components(one: str, other: str) -> int:
    """How many components two dotted names share at their ends: 2 for ``model.norm.weight`` and ``norm.weight``."""
    count = 0
    for left, right in zip(reversed(one.split(".")), reversed(other.split("."))):
        if left != right:
            break
        count += 1
    return count
