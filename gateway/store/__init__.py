"""Redis as replicas use it: one connection object, key names, scripts."""
