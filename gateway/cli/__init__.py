"""The commands of `prefix-gateway`, a module each."""
