"""Bytes to a worker and back."""
