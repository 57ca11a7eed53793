"""Who may ask, and how much: API keys, their limits, and the operator's own credential."""
