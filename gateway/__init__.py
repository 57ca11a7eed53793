"""The front door of a fleet of LLM engines: exact prefix-cache routing."""

__version__ = "0.1.0"
