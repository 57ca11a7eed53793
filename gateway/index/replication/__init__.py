"""The index through Redis: one writer a worker, a mirror in every replica (docs/redis.md)."""
