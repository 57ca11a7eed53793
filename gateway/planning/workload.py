"""What is asked of a fleet: sizes of requests, how many at once, what they share, how fast it must be."""

from __future__ import annotations

import msgspec

from gateway.errors import InvalidRequest


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens, targets in seconds."""

    title: str
    input_mean: int
    input_longest: int
    output_mean: int
    output_longest: int
    prefix: int
    """Leading prompt tokens that all requests have in common."""
    concurrency: int
    """Requests in flight at once, over all replicas."""
    ttft_target: float | None = None
    itl_target: float | None = None

    @property
    def mean_tokens(self) -> int:
        return self.input_mean + self.output_mean

    @property
    def longest_tokens(self) -> int:
        return self.input_longest + self.output_longest

    def check(self) -> None:
        for name in ("input_mean", "output_mean", "concurrency"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1", param=name)
        for side in ("input", "output"):
            if getattr(self, f"{side}_longest") < getattr(self, f"{side}_mean"):
                raise InvalidRequest(
                    f"{side}_longest ({getattr(self, f'{side}_longest')}) is below {side}_mean"
                    f" ({getattr(self, f'{side}_mean')})",
                    param=f"{side}_longest",
                )
        if not 0 <= self.prefix <= self.input_mean:
            raise InvalidRequest(
                f"a common prefix of {self.prefix} tokens in prompts of {self.input_mean}", param="prefix"
            )
        for name in ("ttft_target", "itl_target"):
            target = getattr(self, name)
            if target is not None and not target > 0:
                raise InvalidRequest(f"{name} must be above 0 seconds", param=name)
