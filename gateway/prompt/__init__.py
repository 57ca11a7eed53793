"""Prompt → tokens, exactly as the engine computes them."""
