"""Trained parts that draft from the target's hidden states, as small transformers models: one layer of a Llama.

They end in the target's own frozen output head, or an EAGLE head in a table of its own, and fit one target only
(`head_files.fingerprint`). `feature_layers` are indices into transformers' ``hidden_states``: 0 is the embeddings, i
the output of layer i, the last one after the final norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, LlamaConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specviz.records.errors import SpecvizError

EPSILON = 1e-6

#: What every head with attention stores, see `Head.stored`.
_LAYER = {
    "out": ("out.weight", 1),
    "gate_up": ("gate_up.weight", 2),
    "down": ("down.weight", 1),
    "scale": ("norm.weight", 1),
}


def normalised(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """RMS norm over the last dimension, without a weight, which would be redundant before a linear layer."""
    return functional.rms_norm(x, x.shape[-1:], eps=epsilon)


def _joined(token_embeddings: Tensor, features: Tensor) -> Tensor:
    """[norm(e); norm(f_1); ...], side by side: in some models they differ greatly in scale."""
    parts = torch.cat([token_embeddings, features], -1).unflatten(-1, (-1, token_embeddings.shape[-1]))
    return normalised(parts).flatten(-2)


def _linear(inputs: int, outputs: int, std: float | None = None) -> nn.Linear:
    """Normal weights, of inputs^-½ by default; with `std` 0, a branch that starts by adding nothing."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(linear.weight, std=inputs**-0.5 if std is None else std)
    return linear


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
    sizes_class: ClassVar[type] = MedusaConfig
    stored: ClassVar[dict[str, tuple[str, int]]] = {
        "enter": ("enter", 1),
        "refine": ("refine", 1),
        "scale": ("norm.weight", 1),
    }

    def __init__(self, sizes: MedusaConfig):
        super().__init__()
        self.sizes = sizes
        self.feature_layers = sizes.feature_layers
        heads, d = sizes.num_heads, sizes.hidden_size
        self.enter = nn.Parameter(torch.zeros(heads, d, 2 * d))
        self.refine = nn.Parameter(torch.zeros(heads, d, d))
        self.norm = nn.RMSNorm(d, EPSILON)

    def forward(self, features: Tensor, token_embeddings: Tensor) -> Tensor:
        """States [n, K, d] for the target's output head.

        features: [n, d], the target's last hidden states. token_embeddings: [n, d], the target's embeddings of the
        tokens that follow those rows.
        """
        heads, d = self.sizes.num_heads, self.sizes.hidden_size
        entered = functional.linear(_joined(token_embeddings, features), self.enter.flatten(0, 1)).view(-1, heads, d)
        state = normalised(features).unsqueeze(-2) + functional.silu(entered)
        refined = torch.bmm(state.transpose(0, 1), self.refine.mT).transpose(0, 1)
        return self.norm(state + functional.silu(refined))

    def logits(self, features: Tensor, tokens: Tensor, target: PreTrainedModel) -> Tensor:
        """Each head's logits [n, K, vocab], as many of the K as draft.

        features: [n, d], as `forward` takes them. tokens: [n] int64, those that follow these rows.
        """
        states = self(features, target.get_input_embeddings()(tokens).to(features.device))
        return target.get_output_embeddings()(states).to(features.device)


@dataclass(frozen=True)
class EagleConfig:
    """Sizes of an EAGLE head."""

    hidden_size: int  # d: the target's; any other width with embeddings of its own
    num_attention_heads: int
    intermediate_size: int
    feature_layers: tuple[int, ...]  # the hidden states that are read
    rope_theta: float = 10_000.0  # of rotary positions
    own_vocabulary: int = 0  # rows of the head's own embeddings, which are its output head too; 0: the target's
    target_width: int = 0  # of each hidden state; 0: d

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

    def llama(self, layers: int = 1) -> LlamaConfig:
        """The same for transformers. layers: how many keep keys and values."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_attention_heads,
            num_hidden_layers=layers,
            rms_norm_eps=EPSILON,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
        )


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


@dataclass(frozen=True)
class ParallelConfig(EagleConfig):
    """Sizes of a parallel head."""

    depths: int = 8  # the most tokens of a draft: one row of the text, and masks
    applications: int = 2  # how often the layer is applied
    own_vocabulary: ClassVar[int] = 0  # embeddings and output head are the target's
    target_width: ClassVar[int] = 0

    @classmethod
    def of(cls, target: PreTrainedModel) -> ParallelConfig:
        """Sizes that suit this target. Raises SpecvizError (field ``drafter``) if none do."""
        like = EagleConfig.of(target)
        inner = -(-4 * like.hidden_size // (3 * 64)) * 64
        return cls(like.hidden_size, like.num_attention_heads, inner, like.feature_layers)

    def llama(self, layers: int = 0) -> LlamaConfig:
        return super().llama(layers or self.applications)


class Head(PreTrainedModel):
    """A Llama's decoder layer over the target's features f and the embeddings e of the tokens that follow them.

    It is saved and trained without the embeddings and the output head, which are the target's: `HeadModel` puts them
    together. Its norms have no weights of their own, except for the last. Matrices that read the same are one, since to
    start a product takes longer than to make it.
    """

    kind: ClassVar[str]
    sizes_class: ClassVar[type[EagleConfig]]
    stored: ClassVar[dict[str, tuple[str, int]]]  # name of a tensor on disk -> weight, of how many stacked matrices
    _supports_sdpa = _supports_attention_backend = True
    num_key_value_groups, is_causal = 1, False  # for transformers' attention functions; masks are always given

    def __init__(self, sizes: EagleConfig):
        super().__init__(sizes.llama())
        self.sizes = sizes
        self.feature_layers = sizes.feature_layers
        d, inner = sizes.hidden_size, sizes.intermediate_size
        self.out = _linear(d, d, std=0)
        self.gate_up = _linear(d, 2 * inner)
        self.down = _linear(inner, d, std=0)
        self.norm = nn.RMSNorm(d, EPSILON)
        self.rotary_emb = LlamaRotaryEmbedding(self.config)

    def enter(self, token_embeddings: Tensor, features: Tensor, marks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The states x [..., n, d] that the layer adds to; queries, keys and values side by side, [..., n, 3d], if they
        are not those of norm(x)."""
        raise NotImplementedError

    def fuse(self, features: Tensor, normalise: Callable[[Tensor, float], Tensor] = normalised) -> Tensor:
        """The target's hidden states of the `feature_layers`, side by side, as `enter` takes them."""
        return features

    def turns(self, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rotary positions (RoFormer, arXiv 2104.09864) of position_ids [rows or 1, n] int64: [2, rows or 1, 1, n, head
        size]. The first part multiplies a vector, the second the same vector with its halves swapped: cosine, and sine
        with the sign that the swap needs."""
        cosine, sine = self.rotary_emb(torch.empty(0, dtype=dtype, device=position_ids.device), position_ids)
        first, second = sine.chunk(2, -1)
        return torch.stack([cosine, torch.cat([-first, second], -1)]).unsqueeze(2)

    def forward(
        self,
        state: Tensor,
        qkv: Tensor | None,
        turns: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Hidden states [rows, n, d] of what `enter` gave, [rows, n, ...]; not yet normed.

        turns: their rotary positions, see `turns`. attention_mask: as transformers' attention takes it. cache: to which
        keys and values are added.
        """
        for index in range(self.config.num_hidden_layers):
            own = self.qkv(normalised(state)) if qkv is None else qkv
            state = state + self.out(self._gathered(own, turns, attention_mask, cache, index))
            gate, up = self.gate_up(normalised(state)).chunk(2, -1)
            state = state + self.down(functional.silu(gate) * up)
        return state

    def _gathered(
        self, qkv: Tensor, turns: Tensor, attention_mask: Tensor | None, cache: Cache | None, index: int
    ) -> Tensor:
        """What the rows gather by attention, [rows, n, d]."""
        heads = self.sizes.num_attention_heads
        # [rows, heads of all three, n, head size]
        split = qkv.unflatten(-1, (3 * heads, -1)).transpose(1, 2)
        turned, values = split[:, : 2 * heads], split[:, 2 * heads :]
        swapped = turned.roll(turned.shape[-1] // 2, -1)
        queries, keys = (turned * turns[0] + swapped * turns[1]).chunk(2, 1)
        if cache is not None:
            keys, values = cache.update(keys, values, index)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        return attend(self, queries, keys, values, attention_mask)[0].flatten(-2)


class EagleHead(Head):
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
    sizes_class: ClassVar[type[EagleConfig]] = EagleConfig
    stored: ClassVar[dict[str, tuple[str, int]]] = {
        "table.weight": ("embed_tokens.weight", 1),
        "fusion": ("fc.weight", 1),
        "entry": ("entry.weight", 4),
        **_LAYER,
    }

    def __init__(self, sizes: EagleConfig):
        super().__init__(sizes)
        d = sizes.hidden_size
        self.entry = _linear(2 * d, 4 * d)  # U, queries, keys, values
        with torch.no_grad():
            self.entry.weight[:d] = 0
        self.fc = _new_fusion(sizes)
        self.embed_tokens = self.lm_head = None
        if sizes.own_vocabulary:
            self.embed_tokens = nn.Embedding(sizes.own_vocabulary, d)
            self.lm_head = nn.Linear(d, sizes.own_vocabulary, bias=False)
            self.lm_head.weight = self.embed_tokens.weight

    def enter(self, token_embeddings: Tensor, features: Tensor, marks: Tensor | None) -> tuple[Tensor, Tensor]:
        """features: [..., n, d], fused, or the head's own hidden states."""
        d = self.sizes.hidden_size
        added, qkv = self.entry(_joined(token_embeddings, features)).split([d, 3 * d], -1)
        return token_embeddings + added, qkv

    def fuse(self, features: Tensor, normalise: Callable[[Tensor, float], Tensor] = normalised) -> Tensor:
        """One feature [..., d] of the target's hidden states of the `feature_layers`, side by side."""
        layers = normalise(features.unflatten(-1, (-1, self.sizes.feature_width)), EPSILON).flatten(-2)
        return layers if self.fc is None else self.fc(layers)


def _new_fusion(sizes: EagleConfig) -> nn.Linear | None:
    """The product that makes one feature of several layers'; None if there is nothing to fuse."""
    d, wide = sizes.hidden_size, len(sizes.feature_layers) * sizes.feature_width
    if wide == d:
        return None
    fusion = _linear(wide, d)
    if sizes.feature_width == d:
        # A new head sees the last layer's feature unchanged.
        with torch.no_grad():
            fusion.weight.copy_(torch.cat([torch.zeros(d, wide - d), torch.eye(d)], -1))
    return fusion


class MtpHead(EagleHead):
    """A multi-token-prediction module (DeepSeek-V3, arXiv 2412.19437, §2.2): the state of the depth before and the next
    token's embedding, both normalised and joined (eq. 21), through one decoder layer (eq. 22) into the target's own
    output head (eq. 23).

    An EAGLE head in all but its sizes: x = e + U z is that projection, and attention reads z itself. For further depths
    it is run again on its own states: one module's weights serve all of them.
    """

    kind: ClassVar[str] = "mtp"
    sizes_class: ClassVar[type[EagleConfig]] = MtpConfig
    num_modules = 1


class ParallelHead(Head):
    """One small transformer layer, applied several times, over rows of text and of masks.

    A text's row t takes the target's features of token t and the embedding e of token t + 1, as in EAGLE, and predicts
    token t + 2. After the last one come masks, one for each further depth, which see the text's rows and the masks
    before them. Mask k predicts the token k after that of the last row, without knowing what the others say. So one
    pass gives all depths (PARD, arXiv 2504.18583; P-EAGLE, arXiv 2602.01469; DFlash, arXiv 2602.06036).

        x = e + U [norm(e); norm(f_1); norm(f_2); ...] + m_k, with e and f of the last row for masks, k = 0 for text
        repeatedly: x += attention(norm(x)), x += MLP(norm(x));  logits = output head(w · norm(x))

    A row sees none that come later, unlike the blocks of DFlash: those would only be masks, which say nothing. So a
    row is the same however deep the draft is, and a text's row can be read in the pass that drafts after it and stays.

    In those papers masks have nothing of the text in them; here, as in Medusa, they begin with what the last row knows,
    or else attention would first have to learn to look there. All applications share their weights (ALBERT, arXiv
    1909.11942): most of a draft's time goes to reading weights.
    """

    kind: ClassVar[str] = "parallel"
    sizes_class: ClassVar[type[EagleConfig]] = ParallelConfig
    stored: ClassVar[dict[str, tuple[str, int]]] = {
        "marks.weight": ("marks.weight", 1),
        "entry": ("entry.weight", 1),
        "qkv": ("qkv.weight", 3),
        **_LAYER,
    }

    def __init__(self, sizes: ParallelConfig):
        super().__init__(sizes)
        d = sizes.hidden_size
        self.marks = nn.Embedding(sizes.depths, d)  # m_k
        # Far enough apart to tell the depths from each other, or else learning one spoils the next.
        nn.init.normal_(self.marks.weight, std=0.5)
        self.entry = _linear((1 + len(sizes.feature_layers)) * d, d, std=0)  # U
        self.qkv = _linear(d, 3 * d)

    def enter(self, token_embeddings: Tensor, features: Tensor, marks: Tensor | None) -> tuple[Tensor, None]:
        """features: [..., n, layers · d]. marks: [..., n, d], m_k of each row."""
        return token_embeddings + self.entry(_joined(token_embeddings, features)) + marks, None


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
