"""Choosing a worker: policies are pure functions, the router reads as a list of steps."""
