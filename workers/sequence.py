"""One sequence on its way through the engine: its tokens, its blocks, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from gateway.kv.keys import block_keys, pack_tokens, root_key
from gateway.types import BlockKey
from workers.types import EngineConfig, EngineRequest, FinishReason, Sampled, TokenOutput


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class SequenceState:
    """Mutable, owned by the scheduler.

    Positions 0 … num_computed-1 have K/V in `blocks`. `keys` are those of all full blocks of the known
    tokens; the first `num_registered` blocks can be found in the pool.
    """

    __slots__ = (
        "block_size",
        "blocks",
        "ending_ids",
        "finish_reason",
        "keys",
        "longest",
        "num_cached_tokens",
        "num_computed",
        "num_preemptions",
        "num_registered",
        "num_tokens",
        "output",
        "prompt",
        "request",
        "status",
        "stop_reason",
    )

    def __init__(
        self,
        request: EngineRequest,
        config: EngineConfig,
        eos_token_ids: frozenset[int] = frozenset(),
        prompt_keys: Sequence[BlockKey] | None = None,
    ) -> None:
        """`prompt_keys` saves hashing where the caller knows them: one for each full block of the prompt."""
        sampling = request.sampling
        self.request = request
        self.block_size = config.block_size
        self.prompt = request.prompt_token_ids
        self.output: list[int] = []
        self.num_tokens = len(self.prompt)
        self.longest = min(self.num_tokens + sampling.max_tokens, config.max_model_len)
        """With so many tokens it ends."""
        own = frozenset(sampling.stop_token_ids)
        self.ending_ids = own if sampling.ignore_eos else own | eos_token_ids
        self.num_computed = 0
        self.num_registered = 0
        self.num_preemptions = 0
        self.num_cached_tokens: int | None = None
        """Fixed when it is first scheduled; a preemption does not change it."""
        self.blocks: list[int] = []
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None
        if prompt_keys is None:
            root = root_key(request.scope)
            self.keys = block_keys(root, pack_tokens(self.prompt), block_size=self.block_size)
        elif len(prompt_keys) != len(self.prompt) // self.block_size:
            raise ValueError(f"{len(prompt_keys)} keys for {len(self.prompt) // self.block_size} full blocks")
        else:
            self.keys = list(prompt_keys)

    def __repr__(self) -> str:
        return (
            f"<SequenceState {self.request.request_id} {self.status.value} "
            f"{self.num_computed}/{self.num_tokens} tokens, {len(self.blocks)} blocks>"
        )

    def token_ids(self, start: int, end: int) -> tuple[int, ...]:
        """Known tokens at positions start … end-1."""
        prompt_len = len(self.prompt)
        if end <= prompt_len:
            return self.prompt[start:end]
        if start >= prompt_len:
            return tuple(self.output[start - prompt_len : end - prompt_len])
        return self.prompt[start:] + tuple(self.output[: end - prompt_len])

    def append(self, token_id: int) -> bool:
        """One more known token; its K/V are not computed yet. True where it ends the sequence."""
        self.output.append(token_id)
        self.num_tokens += 1
        if self.num_tokens % self.block_size == 0:
            parent = self.keys[-1] if self.keys else root_key(self.request.scope)
            packed = pack_tokens(self.token_ids(self.num_tokens - self.block_size, self.num_tokens))
            self.keys += block_keys(parent, packed, block_size=self.block_size)
        if token_id in self.ending_ids and len(self.output) >= self.request.sampling.min_tokens:
            self.finish_reason = "stop"
            if token_id in self.request.sampling.stop_token_ids:
                self.stop_reason = token_id
            return True
        if self.num_tokens >= self.longest:
            self.finish_reason = "length"
            return True
        return False

    def forget_computed(self) -> None:
        """Preempted: its blocks are another's now, all that it knows must be computed (or found) again."""
        self.blocks = []
        self.num_computed = 0
        self.num_registered = 0
        self.num_preemptions += 1
        self.status = Status.WAITING

    def aborted(self) -> TokenOutput:
        return TokenOutput(
            request_id=self.request.request_id,
            token_id=None,
            num_cached_tokens=self.num_cached_tokens or 0,
            finish_reason="abort",
        )

    def newest(self, sampled: Sampled) -> TokenOutput:
        """What tells of its last token."""
        return TokenOutput(
            request_id=self.request.request_id,
            token_id=sampled.token_id,
            num_cached_tokens=self.num_cached_tokens or 0,
            logprobs=sampled.logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
