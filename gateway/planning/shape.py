"""What of a model decides its memory and its speed. Counts are of elements, never of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AttentionKind(StrEnum):
    """How query heads share K and V: each its own, in groups, all one pair, or one latent vector."""

    MHA = "MHA"
    GQA = "GQA"
    MQA = "MQA"
    MLA = "MLA"


@dataclass(frozen=True, slots=True)
class LayerKv:
    """What one attention layer keeps for a token."""

    kv_heads: int
    key_dim: int
    """Elements of K a head. MLA keeps one vector, latent and rotary part together: all of it stands here."""
    value_dim: int
    window: int | None = None
    """Sliding window in tokens, the newest one included; None sees everything."""
    latent: bool = False
    """MLA: no heads to split, so every GPU of a tensor-parallel group holds the whole vector."""
    index_bytes: int = 0
    """Bytes a token beside K and V (sparse attention's index keys), whatever the K/V precision."""
    chunked: bool = False
    """The window does not slide: tokens see their own chunk of `window` tokens, from its start (Llama 4)."""


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """`count` layers that keep K/V alike."""

    count: int
    kv: LayerKv


@dataclass(frozen=True, slots=True)
class RecurrentLayers:
    """Linear-attention layers: a state of fixed size a sequence in place of K/V."""

    count: int
    conv_elements: int
    """In the model's 16-bit type, a layer and sequence."""
    state_elements: int
    """A layer and sequence."""
    state_width: int = 4
    """Bytes of one of them."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of weights by what quantisation does to them."""

    embedding: int
    """The input table: looked up, never multiplied."""
    head: int
    """The output projection; 0 where it is the input table again."""
    dense: int
    """Attention projections, dense and shared MLPs, routers: used for every token."""
    experts: int = 0
    """Routed experts, all of them."""
    active_experts: int = 0
    """Routed expert weights that one token uses."""
    other: int = 0
    """Norms, biases, sinks."""

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.dense + self.experts + self.other

    @property
    def active(self) -> int:
        """Used for one token."""
        return self.embedding + self.head + self.dense + self.active_experts + self.other

    @property
    def output(self) -> int:
        """Weights of the output projection, tied or not."""
        return self.head or self.embedding


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    source: str
    """Where the figures come from: a repository, a file."""
    layers: int
    hidden: int
    heads: int
    score_dim: int
    """Elements multiplied for one query-key pair in prefill: of K …"""
    mix_dim: int
    """… and of V."""
    vocabulary: int
    mlp_width: int
    """MLP intermediate elements a token: of all its active experts together."""
    max_positions: int | None
    attention: tuple[AttentionLayers, ...]
    recurrent: RecurrentLayers | None
    parameters: Parameters
    checkpoint: str = "bf16"
    """Weight precision of the published checkpoint: a name in precision.WEIGHTS."""
    kv: str = "fp16"
    """K/V precision that engines take from the checkpoint if nothing else is said: a name in precision.KV."""
    experts_total: int = 0
    experts_per_token: int = 0
    weights_bytes: int | None = None
    """Exact size of the weights where the files were at hand."""
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> AttentionKind:
        widest = max((layers.kv for layers in self.attention), key=lambda kv: kv.kv_heads)
        if widest.latent:
            return AttentionKind.MLA
        if widest.kv_heads == self.heads:
            return AttentionKind.MHA
        return AttentionKind.MQA if widest.kv_heads == 1 else AttentionKind.GQA

    @property
    def latent(self) -> bool:
        return any(layers.kv.latent for layers in self.attention)

    @property
    def sparse_latent(self) -> bool:
        """MLA with an index that picks the tokens to attend to (DeepSeek-V3.2)."""
        return any(layers.kv.latent and layers.kv.index_bytes for layers in self.attention)

    @property
    def hybrid(self) -> bool:
        """Whether some of its memory does not grow with the sequence."""
        return self.recurrent is not None or any(layers.kv.window is not None for layers in self.attention)
