"""The workers: who they are, how they are, what they carry."""
