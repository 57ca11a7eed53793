"""Replay of request traces in virtual time: the product's own index, policies, leases and event path in front
of the simulated engine's real scheduler and block pool."""
