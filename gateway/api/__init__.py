"""HTTP: the OpenAI endpoints on plain ASGI, and the admin port."""
