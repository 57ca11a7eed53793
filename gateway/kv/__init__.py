"""The shared leaf: block keys, KV cache events and their wire form. Stands on xxhash and msgspec alone."""
