"""The engine's HTTP API: the endpoints, bodies, streams and errors that vLLM speaks."""
