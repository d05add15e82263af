"""Trained parts that draft from the target's hidden states: Medusa heads, EAGLE and MTP heads, and their files.

They end in the target's own frozen output head, or an EAGLE head in a table of its own, and fit one target only; a
fingerprint says which. `feature_layers` are indices into transformers' ``hidden_states``: 0 is the embeddings, i the
output of layer i, the last one after the final norm.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

import torch
from huggingface_hub import load_torch_model, save_torch_state_dict
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from specviz.passes.devices import home_of, whole_parameter
from specviz.passes.stored_weights import StoredWeights
from specviz.records.errors import SpecvizError

EPSILON = 1e-6

#: How many rows of the input embeddings go into a fingerprint.
_SAMPLED_ROWS = 64

#: A repository on the Hub takes files up to 10 MB without Git LFS.
_SHARD = "9MB"

#: A head; one class for each recipe.
Head = TypeVar("Head", bound=nn.Module)


def normalised(x: Tensor) -> Tensor:
    """RMS norm over the last dimension, without a weight, which would be redundant before a linear layer."""
    return functional.rms_norm(x, x.shape[-1:], eps=EPSILON)


def _joined(token_embeddings: Tensor, features: Tensor) -> Tensor:
    """[norm(e); norm(f)], [..., 2d]: in some models the two differ greatly in scale."""
    pair = torch.cat([token_embeddings, features], -1)
    return normalised(pair.unflatten(-1, (2, -1))).flatten(-2)


def matrices(*shape: int, std: float) -> nn.Parameter:
    """Normal weights [..., out, in]; with `std` 0, a branch that starts by adding nothing."""
    return nn.Parameter(torch.randn(*shape) * std)


@dataclass(frozen=True)
class MedusaConfig:
    """Sizes of Medusa heads."""

    hidden_size: int  # d, the target's
    num_heads: int  # K, how far ahead they look
    feature_layers: tuple[int, ...]  # the last one alone

    @classmethod
    def of(cls, target: PreTrainedModel, num_heads: int = 4) -> MedusaConfig:
        """Sizes that suit this target. Raises SpecvizError (field ``drafter``) if none do."""
        return cls(hidden_size_of(target), num_heads, (_layers_of(target),))


class MedusaHeads(nn.Module):
    """K heads that each predict a token further ahead, all from one hidden state (Medusa, arXiv 2401.10774, §2.1).

    One deliberate difference: a head sees h_t, the target's last hidden state at the last token it has read, *and* the
    embedding of token x_{t+1}, which was drawn from that row and which h_t cannot know (the motive of Hydra,
    arXiv 2402.05109). Head k predicts x_{t+1+k}, k = 1..K:

        y = norm(h) + SiLU(W_k [norm(e); norm(h)]);  z = y + SiLU(V_k y);  logits = output head(w · norm(z))

    All heads are one batched product, so the whole draft costs about one small pass.
    """

    kind: ClassVar[str] = "medusa"

    def __init__(self, config: MedusaConfig):
        super().__init__()
        self.config = config
        self.feature_layers = config.feature_layers
        heads, d = config.num_heads, config.hidden_size
        self.enter = matrices(heads, d, 2 * d, std=0)
        self.refine = matrices(heads, d, d, std=0)
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, features: Tensor, token_embeddings: Tensor) -> Tensor:
        """What goes into the target's output head, [n, K, d].

        features: [n, d], the target's last hidden states. token_embeddings: [n, d], the target's embeddings of the
        tokens that follow those rows.
        """
        heads, d = self.config.num_heads, self.config.hidden_size
        entered = functional.linear(_joined(token_embeddings, features), self.enter.flatten(0, 1)).view(-1, heads, d)
        state = normalised(features).unsqueeze(-2) + functional.silu(entered)
        refined = torch.bmm(state.transpose(0, 1), self.refine.mT).transpose(0, 1)
        return functional.rms_norm(state + functional.silu(refined), (d,), self.scale, EPSILON)


@dataclass(frozen=True)
class EagleConfig:
    """Sizes of an EAGLE head."""

    hidden_size: int  # d: the target's; any other width with embeddings of its own
    num_attention_heads: int
    intermediate_size: int
    feature_layers: tuple[int, ...]  # the hidden states that are fused
    rope_theta: float = 10_000.0  # of rotary positions
    own_vocabulary: int = 0  # rows of the head's own embeddings, which are its output head too; 0: the target's
    target_width: int = 0  # of each hidden state; 0: d

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def feature_width(self) -> int:
        return self.target_width or self.hidden_size

    @classmethod
    def of(cls, target: PreTrainedModel) -> EagleConfig:
        """Sizes that suit this target: heads of 64 or more, and features from a quarter and five eighths of its depth
        and from the top. Raises SpecvizError (field ``drafter``) if none do."""
        d, layers = hidden_size_of(target), _layers_of(target)
        heads = next(count for count in range(max(1, d // 64), 0, -1) if d % (2 * count) == 0)
        low, middle = max(1, round(layers / 4)), max(1, round(layers * 5 / 8))
        return cls(d, heads, -(-8 * d // (3 * 64)) * 64, tuple(sorted({low, middle, layers})))


@dataclass(frozen=True)
class MtpConfig(EagleConfig):
    """Sizes of an MTP head."""

    @classmethod
    def of(cls, target: PreTrainedModel) -> MtpConfig:
        """As for an EAGLE head, but the last layer's state alone, and a feed-forward layer little more than half as
        wide: 4 MB where d is 384."""
        eagle = EagleConfig.of(target)
        inner = -(-3 * eagle.hidden_size // (2 * 64)) * 64
        return cls(eagle.hidden_size, eagle.num_attention_heads, inner, eagle.feature_layers[-1:])


def rotation(positions: Tensor, config: EagleConfig) -> Tensor:
    """Rotary positions (RoFormer, arXiv 2104.09864): [..., 2, head_dim] float32 for positions [...].

    The first row multiplies a vector, the second the same vector with its halves swapped: cos, and sin with the sign
    that the swap needs.
    """
    half = config.head_dim // 2
    exponents = torch.arange(half, device=positions.device, dtype=torch.float32) / half
    angles = positions.unsqueeze(-1) * config.rope_theta**-exponents
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], -2)


class EagleCache:
    """Keys and values of the tokens that an EAGLE head has read, in buffers that grow: a step copies no older row."""

    def __init__(self, head: EagleHead, capacity: int = 256):
        self.config = head.config
        self._like = head.scale
        self.length = 0  # rows held
        self._reserve(capacity)

    def _reserve(self, capacity: int) -> None:
        shape = (2, capacity, self.config.num_attention_heads, self.config.head_dim)
        rows = torch.empty(shape, dtype=self._like.dtype, device=self._like.device)
        if self.length:
            rows[:, : self.length] = self._rows[:, : self.length]
        self._rows = rows
        turns = rotation(torch.arange(capacity, device=rows.device), self.config)
        self._turns = turns.to(rows.dtype)

    def rotation(self, positions: Tensor) -> Tensor:
        """`rotation` of these positions in the head's dtype; every position lies below the capacity."""
        return self._turns.index_select(0, positions)

    def reserve(self, count: int) -> None:
        """Makes room for `count` more rows."""
        capacity = self._rows.shape[1]
        if self.length + count > capacity:
            self._reserve(max(2 * capacity, self.length + count))

    def append(self, keys_values: Tensor) -> Tensor:
        """Adds rows [2, n, heads, head_dim]; returns all of them, [2, length, heads, head_dim], a view."""
        start, self.length = self.length, self.length + keys_values.shape[1]
        self._rows[:, start : self.length] = keys_values
        return self._rows[:, : self.length]

    def attend(self, queries: Tensor, keys_values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Appends the rows [n, 2, heads, head_dim] and returns what their queries [n, heads, head_dim] gather.

        mask: [n, m + n] bool, which of the m rows held and the n new ones each sees; None: all held, and the new ones
        up to itself.
        """
        n = len(queries)
        # [heads, tokens, head_dim] each
        keys, values = self.append(keys_values.transpose(0, 1)).transpose(1, 2).unbind(0)
        if mask is None and n > 1:
            mask = torch.ones(n, self.length, dtype=torch.bool, device=queries.device).tril(self.length - n)
        seen = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys[None], values[None], None if mask is None else mask[None, None]
        )
        return seen[0].transpose(0, 1)

    def rewind(self, length: int) -> None:
        """Forgets all rows after the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"{self.length} rows cannot be rewound to {length}.")
        self.length = length

    def gather(self, start: int, rows: Tensor) -> None:
        """Keeps the first `start` rows, then those at the indices `rows` [n] int64 in that order, and forgets the rest.

        What is kept of a tree has the positions at which it was read.
        """
        kept = self._rows.index_select(1, rows)
        self.length = start
        self.append(kept)


class EagleHead(nn.Module):
    """One decoder layer over the target's features that drafts token by token (EAGLE, arXiv 2401.15077; features of
    several layers, EAGLE-3, arXiv 2503.01840, §3).

    Row t takes the target's feature f_t of token t and the embedding e of token t + 1, and predicts token t + 2. Where
    the target has not read token t yet, the head's own hidden state of the previous row stands in for f_t.

        z = [norm(e); norm(f)];  x = e + U z + attention(z);  hidden = x + MLP(norm(x))
        logits = output head(w · norm(hidden))

    Embedding and feature also enter the sum directly, as in the first EAGLE: without that, attention must first learn
    to look at its own row, and training takes half as long again. With its own embeddings and nothing taken from
    features it is a one-layer Llama, so a head can start from a draft model, and be as narrow as that.
    """

    kind: ClassVar[str] = "eagle"

    def __init__(self, config: EagleConfig):
        super().__init__()
        self.config = config
        self.feature_layers = config.feature_layers
        d, inner = config.hidden_size, config.intermediate_size
        self.table = nn.Embedding(config.own_vocabulary, d) if config.own_vocabulary else None
        self.fusion = _new_fusion(config)
        # U, queries, keys, values: one product.
        self.entry = matrices(4, d, 2 * d, std=(2 * d) ** -0.5)
        with torch.no_grad():
            self.entry[0] = 0
        self.out = matrices(d, d, std=0)
        self.gate_up = matrices(2, inner, d, std=d**-0.5)
        self.down = matrices(d, inner, std=0)
        self.scale = nn.Parameter(torch.ones(d))

    def embed(self, tokens: Tensor, target: PreTrainedModel) -> Tensor:
        """Token embeddings [..., d] for ids [...]: the head's own, or the target's."""
        return (target.get_input_embeddings() if self.table is None else self.table)(tokens).to(tokens.device)

    def logits(self, hidden: Tensor, target: PreTrainedModel) -> Tensor:
        """[..., vocab] from hidden states [..., d], by the head's own table or the target's output head."""
        normed = self.normed(hidden)
        if self.table is None:
            return target.get_output_embeddings()(normed).to(hidden.device)
        return self.product(normed, "table")

    def fuse(self, features: Tensor) -> Tensor:
        """One feature [..., d] from the target's hidden states of the `feature_layers`, side by side."""
        layers = normalised(features.unflatten(-1, (-1, self.config.feature_width))).flatten(-2)
        return layers if self.fusion is None else self.product(layers, "fusion")

    def forward(
        self,
        features: Tensor,
        token_embeddings: Tensor,
        positions: Tensor,
        rows: EagleCache,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Reads n tokens, appends their keys and values to `rows`, and returns hidden states [n, d].

        features: [n, d], fused, or the head's own hidden states. token_embeddings: [n, d] (`embed`), each of the token
        after its feature's. positions: [n] int64, of the features' tokens. mask: see `EagleCache.attend`.
        """
        rows.reserve(features.shape[0])
        entered, queries, keys_values = self.project(features, token_embeddings, rows.rotation(positions))
        return self.finish(entered, rows.attend(queries, keys_values, mask))

    def project(self, features: Tensor, token_embeddings: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """e + U z [..., d], queries [..., heads, head_dim], and keys with values [..., 2, heads, head_dim].

        turns: `rotation` of their positions, [..., 2, head_dim].
        """
        heads, width = self.config.num_attention_heads, self.config.head_dim
        joined = self.product(_joined(token_embeddings, features), "entry")
        joined = joined.unflatten(-1, (4, heads, width))
        cos, sin = turns[..., None, None, :, :].unbind(-2)
        turned = joined[..., 1:3, :, :]
        turned = turned * cos + turned.roll(width // 2, -1) * sin
        entered = token_embeddings + joined[..., 0, :, :].flatten(-2)
        return entered, turned[..., 0, :, :], torch.stack([turned[..., 1, :, :], joined[..., 3, :, :]], -3)

    def finish(self, entered: Tensor, attended: Tensor) -> Tensor:
        """Hidden states [..., d] from e + U z [..., d] and what attention gathered, [..., heads, head_dim]."""
        state = entered + self.product(attended.flatten(-2), "out")
        gate, up = self.product(normalised(state), "gate_up").chunk(2, -1)
        return state + self.product(functional.silu(gate) * up, "down")

    def product(self, x: Tensor, name: str) -> Tensor:
        """x [..., inputs] times the matrix of this name, [..., outputs]; several ones give their outputs in turn."""
        return functional.linear(x, self.matrix(name))

    def matrix(self, name: str) -> Tensor:
        """[outputs, inputs]; several matrices one below the other."""
        return self.table.weight if name == "table" else getattr(self, name).flatten(0, -2)

    def normed(self, hidden: Tensor) -> Tensor:
        """What goes into the target's output head, [..., d]."""
        return functional.rms_norm(hidden, (self.config.hidden_size,), self.scale, EPSILON)


def _new_fusion(config: EagleConfig) -> nn.Parameter | None:
    """What makes one feature of several layers', [d, theirs side by side]; None if there is nothing to fuse."""
    d, wide = config.hidden_size, len(config.feature_layers) * config.feature_width
    if wide == d:
        return None
    if config.feature_width != d:
        return matrices(d, wide, std=wide**-0.5)
    # A new head sees the last layer's feature unchanged.
    return nn.Parameter(torch.cat([torch.zeros(d, wide - d), torch.eye(d)], -1))


class MtpHead(EagleHead):
    """A multi-token-prediction module (DeepSeek-V3, arXiv 2412.19437, §2.2): the state of the depth before and the next
    token's embedding, both normalised and joined (eq. 21), through one decoder layer (eq. 22) into the target's own
    output head (eq. 23).

    An EAGLE head in all but its sizes: x = e + U z is that projection, and attention reads z itself. For further depths
    it is run again on its own states: one module's weights serve all of them.
    """

    kind: ClassVar[str] = "mtp"
    num_modules = 1


def hidden_size_of(target: PreTrainedModel) -> int:
    """Width of the target's hidden states and of its embeddings.

    Raises SpecvizError (field ``drafter``) if they differ or there is no output head: no part can be trained on it.
    """
    size = target.config.get_text_config().hidden_size
    head = target.get_output_embeddings()
    widths = (target.get_input_embeddings().weight.shape[1], None if head is None else head.weight.shape[1])
    if widths != (size, size):
        raise SpecvizError(
            "Trained heads need embeddings and an output head as wide as the hidden states, and this target has "
            "{embeddings} and {head} beside {size}: choose another drafter.",
            "drafter",
            embeddings=widths[0],
            head=widths[1],
            size=size,
        )
    return size


def _layers_of(target: PreTrainedModel) -> int:
    return target.config.get_text_config().num_hidden_layers


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


def save(head: nn.Module, folder: str | os.PathLike[str], fingerprint: str) -> None:
    """Writes `config.json` and the weights in bfloat16 as safetensors, in shards below 9 MB, to `folder`.

    fingerprint: of the target it was trained on.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"kind": head.kind, "target_fingerprint": fingerprint} | asdict(head.config)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: weight.detach().to("cpu", torch.bfloat16) for name, weight in head.state_dict().items()}
    save_torch_state_dict(weights, folder, max_shard_size=_SHARD)


def settings_in(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the config.json in `folder` says; nothing if there is none that can be read. A trained part's has a
    ``kind``."""
    try:
        settings = json.loads((pathlib.Path(folder) / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def load_medusa(folder: str | os.PathLike[str], target: PreTrainedModel) -> MedusaHeads:
    """Medusa heads from `folder`, in evaluation mode, on the target's device and in its dtype.

    Raises SpecvizError (field ``drafter``) if they are missing, damaged, or belong to another target.
    """
    return load(MedusaHeads, MedusaConfig, pathlib.Path(folder), target)


def load_eagle(folder: str | os.PathLike[str], target: PreTrainedModel) -> EagleHead:
    """The EAGLE head from `folder`; as `load_medusa` in all else."""
    return load(EagleHead, EagleConfig, pathlib.Path(folder), target)


def load_mtp(folder: str | os.PathLike[str], target: PreTrainedModel) -> MtpHead:
    """The MTP head from `folder`; as `load_medusa` in all else."""
    return load(MtpHead, MtpConfig, pathlib.Path(folder), target)


def load(head_class: type[Head], config_class: Any, folder: pathlib.Path, target: PreTrainedModel) -> Head:
    """See `load_medusa`; sizes in `config_class`."""
    kind = head_class.kind
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
        head = head_class(config_class(**config | {"feature_layers": tuple(config["feature_layers"])}))
        load_torch_model(head, folder, strict=True, safe=True)
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
    return head.eval().requires_grad_(False).to(home_of(target), target.dtype)
