"""Gemma 4 assistants (google/gemma-4-…-it-assistant): a few Gemma layers without keys and values of their own, whose
queries read the target's.

Names of weights and settings are those of transformers' `Gemma4AssistantForCausalLM`, which the checkpoints come from,
and so is what follows where engines differ: all tokens of a draft are drafted from the place of the text's last token
(vLLM: from the place before it). The target has not read that token yet, so the text's other tokens are what is seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, Cache, PreTrainedConfig, PreTrainedModel
from transformers.models.gemma4_assistant.modeling_gemma4_assistant import Gemma4AssistantMaskedEmbedder

from specviz.parts.head_passes import Head, HeadModel, HeadOutput, StaticHead
from specviz.parts.part_files import PartFiles
from specviz.parts.published import another_target, filled, same_target
from specviz.parts.reading import RunReading, TrainedPart, variant
from specviz.parts.servers import Servers
from specviz.passes.cached_model import CachedModel
from specviz.passes.fast_passes import FastPasses
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.readers import StaticModel
from specviz.passes.roles import Role
from specviz.passes.static_passes import StaticLayer, StaticPass
from specviz.records.words import Sentence

_SLIDING = "sliding_attention"


class GemmaAssistant(Head):
    """Drafts a token from the embedding of the last one and the last hidden state, [e; h], side by side.

    After the first token its own state stands in for the target's. A row of logits depends on the token's parent alone.
    """

    kind: ClassVar[str] = "mtp"
    method: ClassVar[str] = "Gemma 4 assistant"
    servers: ClassVar[Servers] = Servers("mtp", "NEXTN", "draft-mtp", "ASSISTANT")
    num_modules: ClassVar[int] = 1

    def __init__(self, config: PreTrainedConfig, target: PreTrainedModel):
        text, of_target = config.get_text_config(), target.config.get_text_config()
        super().__init__(text)
        self.feature_layers = (of_target.num_hidden_layers,)
        #: By the kind of layer, which of the target's layers has the keys and values: the last one that has its own.
        self.sources = {
            kind: layer
            for layer, (kind, mode) in enumerate(zip(of_target.layer_types, of_target.kv_sharing_modes))
            if mode == "store" and kind in text.layer_types
        }
        self.width = config.backbone_hidden_size  # of the states that it reads and goes on from
        self.step_back = 0  # from the text's last token to the place that is drafted from
        self.model = AutoModel.from_config(text)
        self.pre_projection = nn.Linear(2 * self.width, text.hidden_size, bias=False)
        self.post_projection = nn.Linear(text.hidden_size, self.width, bias=False)
        self.masked_embedding = Gemma4AssistantMaskedEmbedder(config) if config.use_ordered_embeddings else None
        if not config.tie_word_embeddings:
            self.lm_head = self._output_head(text)

    def _output_head(self, text: PreTrainedConfig) -> nn.Module:
        """With any weights; a table if few of its rows are read at a time."""
        if self.masked_embedding is not None:
            return nn.Embedding(text.vocab_size, text.hidden_size)
        return nn.Linear(text.hidden_size, text.vocab_size, bias=False)

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        """Hidden states [1, n, d] after the last norm, of tokens that do not see each other."""
        cache, places, masks = (attending[name] for name in ("cache", "position_ids", "attention_mask"))
        memory = {kind: (layer.keys, layer.values) for kind, layer in zip(self.sources, cache.layers, strict=True)}
        if masks is None:
            count = embeddings.shape[1]
            masks = {kind: keys.new_zeros(1, 1, count, keys.shape[2]) for kind, (keys, _) in memory.items()}
        elif not isinstance(masks, dict):
            masks = dict.fromkeys(memory, masks)
        hidden = self.pre_projection(torch.cat([embeddings, features], -1))
        turns = {kind: self.model.rotary_emb(hidden, places - self.step_back, kind) for kind in memory}
        # Not by the model as a whole, which drops all tokens but the last where layers share keys and values.
        for kind, layer in zip(self.config.layer_types, self.model.layers, strict=True):
            attending = {"position_embeddings": turns[kind], "attention_mask": masks[kind]}
            hidden = layer(hidden, shared_kv_states=memory, **attending)
        return self.model.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """[1, n, vocab] of hidden states [1, n, d], −∞ for tokens that are not looked at."""
        clusters = self.masked_embedding
        if clusters is None:
            return self.lm_head(hidden)
        table = (self.model.embed_tokens if self.lm_head is None else self.lm_head).weight
        # transformers' class marks the others with the least score less one, which leaves them a probability.
        best = clusters.centroids(hidden).topk(clusters.centroid_intermediate_top_k).indices
        ids = clusters.token_ordering.unflatten(0, (clusters.num_centroids, -1))[best].flatten(-2)
        scores = (table[ids].to(hidden.dtype) @ hidden.unsqueeze(-1)).squeeze(-1)
        return hidden.new_full((*hidden.shape[:-1], len(table)), -torch.inf).scatter(-1, ids, scores)

    def statics(self) -> dict[Role, Callable[..., StaticPass]]:
        return {self.role: functools.partial(StaticAssistant, self)}

    def for_run(self, target: CachedModel, passes: Mapping[Role, FastPasses]) -> RunReading:
        fast = passes.get(self.role)
        assistant = assistant_reader(AssistantModel(self, target.model), target, fast)
        return RunReading(self, [assistant], self.fuse if fast is None else fast.static.fuse)

    def facts(self) -> dict[str, Any]:
        places = {"keys_and_values": self.sources, "place": "before the last token" if self.step_back else "last token"}
        return super().facts() | places | {"modules": self.num_modules}

    def variants(self) -> dict[Sentence, TrainedPart]:
        before = Sentence("drafting from the position before the last token")
        return super().variants() | {before: variant(self, step_back=1)}

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        config = AutoConfig.for_model(**files.settings)
        _check(files, config, target)
        # The output head is the embeddings: some files hold both.
        copied = {"lm_head.weight"} if config.tie_word_embeddings else ()
        files = files.named(lambda name: None if name in copied else name)
        part = filled(lambda: cls(config, target), files, target)
        if part.masked_embedding is not None and not _groups_all(part.masked_embedding):
            raise files.complaint(
                "The groups of tokens in {folder} (masked_embedding) are damaged: they do not contain each token "
                "exactly once."
            )
        if part.masked_embedding is None and part.lm_head is None:
            with torch.device("meta"):
                part.lm_head = part._output_head(part.config)
            part.lm_head.weight = part.model.embed_tokens.weight
        return part


class AssistantModel(HeadModel):
    """An assistant with the target's embeddings. Its cache holds what the queries read, and a pass adds nothing."""

    @property
    def input_width(self) -> int:
        return self.head.width

    def forward(
        self,
        input_ids: Tensor,
        features: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        attention_mask: dict[str, Tensor] | Tensor | None = None,
        cache: Cache | None = None,
        **unused: object,
    ) -> HeadOutput:
        """position_ids: [1, n], of the text's last token. attention_mask: by the kind of layer, if there are several;
        by default all that the cache holds is seen."""
        assert features is not None
        embeddings = self.embed(input_ids).to(features.device)
        attending = {"position_ids": position_ids, "attention_mask": attention_mask, "cache": cache}
        hidden = self.head.read(embeddings, features, **attending)
        return HeadOutput(self.head.logits(hidden), (self.head.post_projection(hidden),))


class StaticAssistant(StaticHead):
    """One pass of an assistant over the target's buffers."""

    model_class: ClassVar[type[HeadModel]] = AssistantModel
    shares_kv = True
    drafts_in_place = True

    def _lay_out(self, model: AssistantModel) -> None:
        text = model.config
        sizes = dict(zip(text.layer_types, text.per_layer_config))
        kinds = list(model.head.sources)
        self.caching = [True] * len(kinds)
        self.kv_shapes = [(sizes[kind].num_key_value_heads, sizes[kind].head_dim) for kind in kinds for _ in range(2)]
        self.slides = [kind == _SLIDING for kind in kinds]
        self.window = text.sliding_window if any(self.slides) else None
        self.places = [2 * layer + part for layer in model.head.sources.values() for part in range(2)]

    def kv_in_use(self, kv: Sequence[Tensor]) -> Sequence[Tensor]:
        return kv if len(kv) == len(self.places) else [kv[place] for place in self.places]


def assistant_reader(model: AssistantModel, of_target: CachedModel, passes: FastPasses | None) -> CachedModel:
    """An assistant beside the target's reader of a text. Row i is that of token i + 1, but it keeps nothing itself.

    passes: used where the target's keys and values lie in static buffers.
    """
    if passes is None or not isinstance(of_target, StaticModel):
        return _AssistantReader(model, of_target)
    return _StaticAssistantReader(model, of_target, passes)


class _AssistantReader(CachedModel):
    def __init__(self, model: AssistantModel, of_target: CachedModel):
        self.of_target = of_target
        self.remembered = 0  # tokens that the target had read when the cache was filled
        super().__init__(model, of_target.stopwatch, (-1,))

    def _empty(self) -> None:
        self.cache = Cache(layers=[])

    def _read(
        self, token_ids: Tensor, rows_wanted: int, visible: Tensor | None, positions: Tensor | None, inputs: Tensor
    ) -> Tensor:
        if self.remembered != self.of_target.length:
            self.cache, self.remembered = self._memory(), self.of_target.length
        # Nothing goes on from what comes before in the text.
        last = token_ids[-rows_wanted:]
        logits = super()._read(last, rows_wanted, None, torch.full_like(last, self.remembered), inputs[-rows_wanted:])
        assert self.features is not None
        self.features = self.features.expand(len(token_ids), -1)
        return logits

    def _memory(self) -> Cache:
        """What the queries read: of windows, what the target's own layer sees from the text's last token."""
        kv, length, layers = self.of_target.kv(), self.of_target.length, []
        for kind, layer in self.model.head.sources.items():
            # Before its window is full, and over static buffers, a layer holds more.
            count = min(length, self.model.config.sliding_window - 1) if kind == _SLIDING else length
            like = self.model.head.pre_projection.weight
            keys, values = (part[:, :, -count:].to(like) for part in kv[2 * layer :][:2])
            layers.append(StaticLayer(keys, values, where=None))
        return Cache(layers=layers)

    def _forget(self, count: int) -> None:
        """Has nothing to forget."""


class _StaticAssistantReader(StaticModel):
    def __init__(self, model: AssistantModel, of_target: StaticModel, passes: FastPasses):
        self.of_target = of_target
        super().__init__(model, of_target.stopwatch, passes, (-1,), of_target.buffers)

    def _read(
        self, token_ids: Tensor, rows_wanted: int, visible: Tensor | None, positions: Tensor | None, inputs: Tensor
    ) -> Tensor:
        last = token_ids[-rows_wanted:]
        where = torch.full_like(last, self.of_target.length)
        read = last, where, where, where.unsqueeze(-1) > self.buffers.cells
        logits, states = self.passes.read(*read, self._tensors, self.feature_layers, (inputs[-rows_wanted:],))
        assert states is not None, "its `feature_layers` ask for them"
        self.features = states.expand(len(token_ids), -1)
        return logits

    def draft(
        self, unread: Tensor, levels: int, choice: Choice, uniforms: Tensor, inputs: Tensor | None = None
    ) -> RawDraft:
        assert inputs is not None and self.passes.draft is not None, "it reads states, and there is a `draft_width`"
        arguments = unread[-1:], self.of_target.length, self._tensors, levels, choice, uniforms, inputs[-1:]
        with self.stopwatch.span():
            drafted = self.passes.draft(*arguments)
        self.length += len(unread) + drafted.read
        return drafted


def _groups_all(clusters: Gemma4AssistantMaskedEmbedder) -> bool:
    order, groups = clusters.token_ordering, clusters.num_centroids
    each_once = torch.equal(order.sort().values, torch.arange(len(order), device=order.device))
    return each_once and len(order) % groups == 0 and clusters.centroid_intermediate_top_k <= groups


def _check(files: PartFiles, config: PreTrainedConfig, target: PreTrainedModel) -> None:
    text, of_target = config.get_text_config(), target.config.get_text_config()
    modes = getattr(of_target, "kv_sharing_modes", None)
    sources = {} if modes is None else dict(zip(of_target.layer_types, of_target.per_layer_config))
    if not set(text.layer_types) <= sources.keys():
        raise files.complaint(
            "The assistant in {folder} reads the keys and values of a Gemma 4 model: name the model that it was "
            "made for as the target."
        )
    sizes = {"hidden_size": config.backbone_hidden_size, "vocab_size": text.vocab_size}
    same_target(files, target, **sizes, sliding_window=text.sliding_window)
    for kind, layer in zip(text.layer_types, text.per_layer_config):
        for name in ("head_dim", "num_key_value_heads"):
            if (size := getattr(layer, name)) != (target_size := getattr(sources[kind], name)):
                raise another_target(files, f"{name} ({kind})", size, target_size)
