"""How much memory a pair needs, reckoned before any weights are read: from configurations and the heads of files."""

from __future__ import annotations

import copy
import math
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.utils import SafetensorsRepoMetadata

from specviz.models.checks import check_architecture, check_quantisation
from specviz.models.hub import is_hub_id, token_given, without_page
from specviz.models.loading import find_models
from specviz.models.pair import logit_width
from specviz.models.placement import dtype_name, dtype_named, free_memory, place_named
from specviz.models.refusals import Named, explaining
from specviz.models.sources import ModelSource, quietly
from specviz.models.trained_parts import Name, sort_drafts
from specviz.models.weights import choose_dtype
from specviz.parts.part_files import PartFiles
from specviz.passes.devices import Stopwatch
from specviz.passes.model_twins import shared_weights
from specviz.passes.positions import position_limit
from specviz.passes.readers import new_cached_model
from specviz.passes.states import keeps_state
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError

#: Tokens of the text for which caches are reckoned, where models read as many.
CONTEXT = 4096

#: Tokens of a pass whose logits are held: the longest draft and the one before it.
ROWS = 17

#: Tokens that a shell with a running state reads, which it does step by step; its keys and values grow evenly.
_STEPS = 64


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a pair will hold, without the temporary ones of a pass."""

    weights: dict[str, int]  # of ``target``, ``draft`` and trained parts by their drafters
    caches: int  # of target and draft model, with `tokens` tokens
    logits: int  # of the target, in float32
    kernels: int  # more than that on a CPU, once passes run on our own kernels, see `_Shell.kernel_bytes`
    tokens: int
    dtype: str
    device: str
    free: int  # there now

    @property
    def total(self) -> int:
        return sum(self.weights.values()) + self.caches + self.logits + self.kernels


def memory_need(
    target: Name,
    drafts: Sequence[Name] = (),
    *,
    device: str | torch.device = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    token: str | None = None,
) -> MemoryNeed:
    """The need of the pair that `load_pair` would load; of the Hub it reads configurations and the heads of files.

    Parts in the target's own folder do not count. Raises SpecvizError as `load_pair` does, and for a GGUF file that
    would have to be fetched whole.
    """
    place, named_dtype, token = place_named(device), dtype_named(dtype), token_given(token)
    for field, name in [("target", target), *(("draft", draft) for draft in drafts)]:
        _refuse_unfetched(str(without_page(name, field)), field)
    with quietly():
        model, parts = sort_drafts(drafts, None, token, whole=False)
        sources = find_models(target, model, (revision, None), token)
        for source in sources:
            check_architecture(source)
            check_quantisation(source, place.device)
        chosen = named_dtype or choose_dtype(place.device, sources)
        shells = [_Shell(source, chosen) for source in sources]
        tokens = min([CONTEXT, *(shell.limit for shell in shells if shell.limit)])
        weights = {source.field: source.weight_bytes(chosen) or _stored_on_hub(source) for source in sources}
        weights |= {kind: chosen.itemsize * _parameters_in(folder, token) for kind, folder in parts.items()}
        caches = sum(shell.cache_bytes(tokens) for shell in shells)
        kernels = sum(shell.kernel_bytes(tokens) for shell in shells) if place.device.type == "cpu" else 0
    logits = 4 * ROWS * logit_width(shells[0].model)
    free, device = free_memory(place.device), str(place.device)
    return MemoryNeed(weights, caches, logits, kernels, tokens, dtype_name(chosen), device, free)


class _Shell:
    """A model without weights, which computes nothing and yet makes a cache of the right shapes."""

    def __init__(self, source: ModelSource, dtype: torch.dtype):
        config = copy.deepcopy(source.config)
        config.pad_token_id = None  # where it is known, some models look for it among tokens that have no values here
        self.itemsize = ((source.config.dtype if source.quantised else None) or dtype).itemsize
        self.source = source
        with source.explaining("configuration"), torch.device("meta"):
            # In bfloat16, in which alone experts are multiplied together.
            shell = source.auto_class.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
        self.model = shell.eval()
        self.limit = position_limit(shell)

    def cache_bytes(self, tokens: int) -> int:
        """Of its cache with so many tokens."""
        read = min(tokens, _STEPS) if keeps_state(self.model) else tokens
        with self.source.explaining("configuration"), torch.device("meta"):
            reader = new_cached_model(self.model, Stopwatch(torch.device("cpu")))
            reader.prefill([0] * (read + 1))
        # Layers that share another's keys and values have none of their own.
        rows = [part for part in reader.kv() if part is not None]
        return self._bytes(rows) * tokens // read + self._bytes(reader.states())

    def kernel_bytes(self, tokens: int) -> int:
        """What its passes hold more once they run on our kernels: caches in float32, and a head that is the table of
        embeddings too, laid out anew. 0 where they cannot."""
        try:
            StaticPass(self.model)
        except SpecvizError:
            return 0
        head = self.model.get_output_embeddings().weight
        tied = head.numel() * self.itemsize if id(head) in shared_weights(self.model) else 0
        return self.cache_bytes(tokens) * (4 - self.itemsize) // self.itemsize + tied

    def _bytes(self, parts: Sequence[torch.Tensor]) -> int:
        sizes = (self.itemsize if part.dtype == torch.bfloat16 else part.element_size() for part in parts)
        return sum(part.numel() * size for part, size in zip(parts, sizes))


def _refuse_unfetched(name: str, field: str) -> None:
    if is_hub_id(name) and name.endswith(".gguf"):
        owner, model, file = name.split("/", 2)
        if not isinstance(try_to_load_from_cache(f"{owner}/{model}", file), str):
            raise Named(field, name).complaint("How much memory {name} needs is known once it has been downloaded.")


def _stored_on_hub(source: ModelSource) -> int:
    """Bytes of quantised weights that are not here yet, by the heads of their files; 0 of a folder without any."""
    if not is_hub_id(source.location):
        return 0
    with source.explaining("weights"):
        heads = _heads(source.name, source.options.get("revision"), source.options.get("token"))
    tensors = (tensor for file in heads.files_metadata.values() for tensor in file.tensors.values())
    return sum(end - start for start, end in (tensor.data_offsets for tensor in tensors))


def _parameters_in(folder: pathlib.Path, token: str | None) -> int:
    """Of a trained part, by the heads of its files; these lie on the Hub where the folder holds its settings alone."""
    if shapes := PartFiles.at(folder).shapes:
        return sum(map(math.prod, shapes.values()))
    repository = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    with explaining("weights", Named("draft", repository)):
        return sum(_heads(repository, folder.name, token).parameter_count.values())


def _heads(name: str, revision: str | None, token: str | None) -> SafetensorsRepoMetadata:
    return HfApi(token=token).get_safetensors_metadata(name, revision=revision)
