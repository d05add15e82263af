"""Multi-token-prediction modules: in files of their own, as speculators writes them (FastMTP, arXiv 2509.18362), one
layer that is run again on its own states for every further token; and those of a target's own checkpoint, which lie in
GGUF files of their own, too.

Names of weights in speculators' files are theirs (``mtp_layers.0.…``). Embeddings and output head are the target's.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specviz.parts.head_passes import Head, PublishedHead
from specviz.parts.part_files import PartFiles
from specviz.parts.published import filled, same_target, weighted
from specviz.parts.reading import HostLevel, RunReading, TrainedPart, variant
from specviz.parts.servers import Servers
from specviz.passes.cached_model import CachedModel, tree_view
from specviz.passes.devices import home_of
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.chains import FusedBy
from specviz.passes.roles import Role
from specviz.passes.static_passes import StaticPass
from specviz.records.words import Sentence
from specviz.rules.draft import tree_shape
from specviz.rules.transfer import to_device

#: Families whose layers a module may have.
_FAMILIES = ("llama", "qwen2", "qwen3")


class MtpFile(PublishedHead):
    """Row t takes the target's state f at token t, as its last layer leaves it, and the embedding e of token t + 1, and
    predicts token t + 2. Where the target has not read token t yet, its own state of the row before stands in.

        x = U [norm(e); norm(f)];  state = norm(layer(x));  logits = the target's output head(state)

    Servers give a module, which they find in the target's checkpoint alone, the state after the target's last norm;
    speculators trains with the one before it.
    """

    kind: ClassVar[str] = "mtp"
    method: ClassVar[str] = "MTP"
    servers: ClassVar[Servers] = Servers()  # they read modules that are layers of the target's own checkpoint
    num_modules: ClassVar[int] = 1

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files)
        d, layer = self.config.hidden_size, self.layers[0]
        self.feature_layers = (target.config.get_text_config().num_hidden_layers,)
        layer.input_proj = nn.Linear(2 * d, d, bias=False)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            setattr(layer, name, LlamaRMSNorm(d, self.config.rms_norm_eps))
        scale = last_scale(target)
        # What a weight of 0 took away does not come back.
        self.register_buffer("last_scale", scale.masked_fill(scale == 0, 1), persistent=False)
        self.before_last_norm = True  # of the target
        self.embedding_first = True

    @property
    def norm(self) -> nn.Module:
        return self.layers[0].final_layernorm

    @property
    def fused_by(self) -> FusedBy | None:
        return FusedBy(divisors=self.last_scale) if self.before_last_norm else None

    def fuse(self, features: Tensor) -> Tensor:
        """The state before the target's last norm, but for its length, which the module's own norm takes away too."""
        return (features / self.last_scale).to(features.dtype) if self.before_last_norm else features

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        layer = self.layers[0]
        inputs = layer.token_layernorm(embeddings), layer.hidden_layernorm(features)
        joined = torch.cat(inputs if self.embedding_first else inputs[::-1], -1)
        return layer(layer.input_proj(joined), **attending)

    def fed_back(self, hidden: Tensor) -> Tensor:
        """Its state after its last norm, which is also what the output head reads."""
        return self.norm(hidden)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {
            "state": "before the target's last norm" if self.before_last_norm else "as it is",
            "joined": "embedding, state" if self.embedding_first else "state, embedding",
            "modules": self.num_modules,
        }

    def variants(self) -> dict[Sentence, TrainedPart]:
        # Further down there is no such norm.
        variants = {name: variant(part, before_last_norm=False) for name, part in super().variants().items()}
        return variants | {
            Sentence("the state after the target's last norm"): variant(self, before_last_norm=False),
            Sentence("state and embedding joined the other way round"): variant(self, embedding_first=False),
        }

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        layers = files.settings.get("transformer_layer_config")
        layers = layers if isinstance(layers, dict) else {}
        family = layers.get("model_type")
        if family not in _FAMILIES:
            raise files.complaint(
                "{folder} holds an MTP module with a layer of the family {family}, which is not supported "
                "(supported: {families}).",
                family=family,
                families=", ".join(_FAMILIES),
            )
        same_target(files, target, **{name: layers.get(name) for name in ("hidden_size", "vocab_size")})
        # Early files have copies of the target's embeddings and output head.
        files = files.named(lambda name: name.removeprefix("mtp_") if name.startswith("mtp_layers.") else None)
        return filled(lambda: cls(files, target), files, target)


def last_scale(target: PreTrainedModel) -> Tensor:
    """What the target's last norm multiplies its states with once they have a length of their own, [d] float32.

    Ones for a norm that takes away more than their length, as it does in older families.
    """
    width, norm = target.config.get_text_config().hidden_size, getattr(target.get_decoder(), "norm", None)
    if norm is None or isinstance(norm, nn.LayerNorm):
        return torch.ones(width, device=home_of(target))
    # What it makes of ones is its weights, whether they count from 0 or from 1, and wherever they are kept.
    ones = torch.ones(width, dtype=target.dtype, device=home_of(target))
    return norm(ones).detach().float()


def with_modules(target: PreTrainedModel, count: int) -> PreTrainedModel:
    """A twin of the target whose configuration names so many modules, as `MtpModel` reads it.

    Families whose own says nothing of them, Qwen3-Next and later, have layers with full attention there.
    """
    twin = copy.copy(target)
    twin.config = copy.deepcopy(target.config)
    config = twin.config.get_text_config()
    if getattr(config, "num_mtp_layers", None) is None:
        config.mtp_layer_types = ["full_attention"] * count
    config.num_mtp_layers = count
    return twin


class CheckpointModule(Head):
    """One of the multi-token-prediction modules of a target's checkpoint (DeepSeek-V3, arXiv 2412.19437, §2.2).

    Its layer is one of transformers' `MtpModel`, which knows, family by family, which hidden state goes in and which
    norms it passes. The first module reads the target's last hidden states, each other one those of the module before;
    row i of the k-th one is that of token i + k. Embeddings and output head are the target's.
    """

    kind: ClassVar[str] = "mtp"
    method: ClassVar[str] = "MTP"

    def __init__(self, model: MtpModel, index: int, target: PreTrainedModel):
        """index: from 0. Raises ValueError for modules without rotary positions."""
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = 1
        if kinds := getattr(config, "layer_types", None):
            config.layer_types = kinds[index : index + 1]
        config._experts_implementation = None  # its layer has the target's
        super().__init__(config)
        if model.rotary_emb is None:
            raise ValueError("they have no rotary positions")
        self.feature_layers = (target.config.get_text_config().num_hidden_layers,)
        self.place = index + 1
        self.turned_as = {"layer_type": config.layer_types[0]} if model.has_per_layer_rope else {}
        self.module, self.rotary_emb, self.norm = model.layers[index], model.rotary_emb, nn.Identity()
        for part in self.module.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = 0  # each module has a cache of its own

    def turns(self, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
        like = torch.empty(0, dtype=dtype, device=position_ids.device)
        return torch.stack(self.rotary_emb(like, position_ids=position_ids + self.place, **self.turned_as))

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        return self.module(embeddings, features, position_ids=None, **attending)


class MtpModules(TrainedPart):
    """All modules of a target's checkpoint, in turn.

    Module k predicts the k-th token ahead from the states of module k − 1, of the target for the first. Deeper drafts
    go on with the last module, run again on its own states.
    """

    kind: ClassVar[str] = "mtp"
    method: ClassVar[str] = "MTP"
    servers: ClassVar[Servers] = Servers("mtp", "NEXTN", "draft-mtp", sglang_draws=True)

    def __init__(self, model: MtpModel, target: PreTrainedModel):
        self.modules = [CheckpointModule(model, index, target) for index in range(len(model.layers))]
        self.feature_layers = self.modules[0].feature_layers
        self.num_modules = len(self.modules)

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        """Those in a GGUF file, in evaluation mode, on the target's device and in its dtype. Raises as parts do."""
        count = files.needed("num_nextn_predict_layers")
        same_target(files, target, **{name: files.settings[name] for name in ("hidden_size", "num_hidden_layers")})
        twin = with_modules(target, count)
        with torch.device("meta"):
            model = MtpModel(twin, count)
        model.layers = weighted(lambda: nn.ModuleDict({"layers": MtpModel(twin, count).layers}), files)["layers"]
        like = dict(target.get_decoder().layers[-1].named_parameters())
        for layer in model.layers:
            for name, weight in layer.named_parameters():
                # As in the target: a router may stay in float32.
                weight.data = weight.data.to(like.get(name.removeprefix("mtp_block."), target).dtype)
        model.layers.to(home_of(target))
        return cls(model, target)

    def statics(self) -> dict[Role, Callable[..., StaticPass]]:
        return {role: make for module in self.modules for role, make in module.statics().items()}

    def facts(self) -> dict[str, Any]:
        return {"modules": self.num_modules}

    def source(self, depth: int) -> str:
        return super().source(depth) if self.num_modules == 1 else f"module {min(depth + 1, self.num_modules)}"

    def for_run(self, target: CachedModel, passes: Mapping[Role, FastPasses]) -> RunReading:
        if self.num_modules == 1:
            return self.modules[0].for_run(target, passes)
        return ReadingInTurn(self, [module.reader_for(target, passes) for module in self.modules], self.fuse)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return itertools.chain.from_iterable(module.parameters() for module in self.modules)


class ReadingInTurn(RunReading):
    """Passes of several modules. Each has a cache of its own and reads the text too, beginning one token further on
    than the one before."""

    def __init__(self, part: TrainedPart, readers: Sequence[CachedModel], fuse: Callable[[Tensor], Tensor]):
        super().__init__(part, readers, fuse)
        self.lengths = [0] * len(readers)  # of the text that each has read
        # The states of the module before, for the text's tokens that each module has yet to read; the last one belongs
        # to a token that is yet to come.
        self.states_before: list[list[Tensor]] = [[] for _ in readers]
        self.place = 0  # of the module that has read last
        self.committed: Sequence[int] = ()
        self.drafted: list[Tensor] = []

    @property
    def shortest(self) -> int:
        """So that every module has a row of the text: its first is that of the token as far on as it looks."""
        return len(self.readers) + 1

    def begin(self, committed: Sequence[int], features: Tensor) -> None:
        self.committed, self.drafted, self.place = committed, [], 0
        self.reader = self.readers[0]
        super().begin(committed, features)

    def go_back(self) -> None:
        for reader, length in zip(self.readers, self.lengths):
            reader.rewind(length)
        self.reader = self.readers[0]

    def text(self, masks: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        rows = super().text(masks, features)
        self._note(self._last_states)
        return rows

    def level(self, level: HostLevel) -> Tensor:
        if self.place + 1 == len(self.readers):
            return super().level(level)
        self.drafted.append(level.tokens)
        return self._read_on(len(level.tokens), level.parents, level.in_tree)

    def _read_on(self, rows_wanted: int, parents: tuple[int, ...], in_tree: bool) -> Tensor:
        """The next module reads the text's new tokens and all draft tokens so far; logits [rows_wanted, vocab]."""
        self.place += 1
        self.reader = self.readers[self.place]
        tokens = to_device(self.committed[self.reader.length + self.place + 1 :], self.states.device)
        before, shape = torch.cat(self.states_before[self.place]), tree_shape(parents, tokens.device)
        features = torch.cat([before[:-1], self.states.index_select(0, shape.rows)])
        self.states_before[self.place] = [before[-1:]]
        self.held = self.reader.length + len(tokens)
        view = tree_view(parents, self.reader.length, len(tokens)) if in_tree else ()
        visible, positions = [to_device(part, tokens.device) for part in view] or (None, None)
        logits = self.reader.forward(torch.cat([tokens, *self.drafted]), rows_wanted, visible, positions, features)
        self._note(self._last_states[: len(tokens)])
        self.states = self._last_states[len(tokens) - 1 :]
        return logits

    def _note(self, states: Tensor) -> None:
        """Keeps the length of the text that the current module has read, and its states for the next module."""
        self.lengths[self.place] = self.held
        if self.place + 1 < len(self.readers):
            self.states_before[self.place + 1].append(states)
