"""Chats and traces, open loop over HTTP, against simulated engines in real time, through any router."""
