"""The names this engine answers to, and what each means for the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.types import CacheScope
from workers.api.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class ServedModels:
    """`names[0]` is the base model's name in answers; the others are aliases of it.

    An adapter here changes the scope of cached blocks and the name in answers, not the weights: enough to see
    that nothing is shared across adapters.
    """

    names: Sequence[str]
    adapters: Sequence[str]
    root: str
    max_model_len: int
    created: int

    def resolve(self, name: str | None, salt: str | None) -> tuple[str, CacheScope]:
        """(name to answer with, root of the block keys). Raises ModelNotFound."""
        base = self.names[0]
        if not name or name in self.names:
            return base, CacheScope(base, salt=salt or "")
        if name in self.adapters:
            return name, CacheScope(base, adapter=name, salt=salt or "")
        known = ", ".join((*self.names, *self.adapters))
        raise ModelNotFound(f"The model `{name}` does not exist. Valid aliases: {known}.", param="model")

    def body(self) -> dict[str, Any]:
        cards = [self._card(name, self.root, None, self.max_model_len) for name in self.names]
        cards += [self._card(name, name, self.names[0], None) for name in self.adapters]
        return {"object": "list", "data": cards}

    def _card(self, name: str, root: str, parent: str | None, max_model_len: int | None) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{name}",
            "object": "model_permission",
            "created": self.created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": max_model_len,
            "permission": [permission],
        }
