"""The reference engine: a real paged KV engine on NumPy, and its simulated twin."""
