"""The boards, in the order in which people look at them."""

from __future__ import annotations

from grafana.boards.cache import CACHE
from grafana.boards.capacity import CAPACITY
from grafana.boards.latency import LATENCY
from grafana.boards.overview import OVERVIEW
from grafana.boards.replicas import REPLICAS
from grafana.boards.workers import WORKERS

BOARDS = (OVERVIEW, CACHE, LATENCY, WORKERS, REPLICAS, CAPACITY)
