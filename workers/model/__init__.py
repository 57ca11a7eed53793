"""The arithmetic of the reference engine: a Llama-family decoder over paged K/V, in float32 NumPy."""
