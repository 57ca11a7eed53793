"""Following what engines say about their caches."""
