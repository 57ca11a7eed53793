"""The gateway processes themselves, and what they share through Redis."""

from __future__ import annotations

from grafana.panels import RATE, REPLICA, Board, Panel, Query, Row
from grafana.queries import per_second, quantile


def _each(title: str, text: str, expr: str, unit: str = "short") -> Panel:
    return Panel(title, text, (Query(expr, "{{instance}}"),), unit=unit, lowest=0)


REPLICAS = Board(
    "prefix-gateway-replicas",
    "Replicas and Redis",
    "Gateway processes and what they share. Without Redis, its row stays empty.",
    (
        Row(
            "Processes",
            (
                _each(
                    "Requests",
                    "Ended at each replica, a second.",
                    f"sum by (instance) (rate(gateway_requests_total{{{REPLICA}}}{RATE}))",
                    "reqps",
                ),
                _each(
                    "CPU",
                    "Cores in use. One process uses one core at most, plus tokenising threads.",
                    f"rate(process_cpu_seconds_total{{{REPLICA}}}{RATE})",
                ),
                _each(
                    "Memory",
                    "Resident. Grows with the index, up to its bound.",
                    f"process_resident_memory_bytes{{{REPLICA}}}",
                    "bytes",
                ),
                _each(
                    "CPU per request",
                    "Streams cost by the chunk: see the operations guide for sizing.",
                    f"rate(process_cpu_seconds_total{{{REPLICA}}}{RATE}) / on (job, instance) "
                    f"(sum by (job, instance) (rate(gateway_requests_total{{{REPLICA}}}{RATE})) > 0)",
                    "s",
                ),
                _each(
                    "Open files",
                    "Sockets to clients and workers, mostly; of the process's limit.",
                    f"process_open_fds{{{REPLICA}}} / process_max_fds{{{REPLICA}}}",
                    "percentunit",
                ),
                Panel(
                    "Ready, version",
                    "1 where a replica may get traffic.",
                    (
                        Query(
                            f"gateway_ready{{{REPLICA}}} * on (job, instance) group_left (version) "
                            f"gateway_build_info{{{REPLICA}}}",
                            "{{instance}} {{version}}",
                        ),
                    ),
                    lowest=0,
                    highest=1,
                ),
            ),
        ),
        Row(
            "Several processes behind one port",
            (
                Panel(
                    "Processes ready",
                    "With `--processes` alone: those that take connections, and how many there should be.",
                    (
                        Query(f"gateway_processes_ready{{{REPLICA}}}", "{{instance}} ready"),
                        Query(f"gateway_processes{{{REPLICA}}}", "{{instance}} wanted"),
                    ),
                    lowest=0,
                    quiet=True,
                ),
                Panel(
                    "Processes that ended by themselves",
                    "Each is started again; the requests in it were lost to their clients.",
                    (
                        Query(
                            f"sum by (instance) (increase(gateway_process_crashes_total{{{REPLICA}}}{RATE}))",
                            "{{instance}}",
                        ),
                    ),
                    lowest=0,
                    quiet=True,
                ),
                Panel(
                    "Connections, by process",
                    "Of clients. Uneven by more than a few: clients that close and open few connections.",
                    (
                        Query(
                            f"max by (instance, process) (gateway_process_connections{{{REPLICA}}})",
                            "{{instance}} {{process}}",
                        ),
                    ),
                    lowest=0,
                    quiet=True,
                ),
            ),
        ),
        Row(
            "One knowledge",
            (
                _each(
                    "Blocks known",
                    "Distinct blocks in each replica's index. Replicas that share should agree.",
                    f"gateway_index_distinct_blocks{{{REPLICA}}}",
                ),
                _each("Peers heard", "Other replicas that each one hears.", f"gateway_peers{{{REPLICA}}}"),
                _each(
                    "Load and placements shared",
                    "1 where a replica hears itself through Redis; 0: it routes without its peers' load.",
                    f"gateway_sharing_up{{{REPLICA}}}",
                ),
                Panel(
                    "Workers written, by replica",
                    "One replica writes a worker's blocks to Redis, the others mirror them.",
                    (Query(f"sum by (instance) (gateway_index_writer{{{REPLICA}}})", "{{instance}}"),),
                    stacked=True,
                    lowest=0,
                ),
                Panel(
                    "Mirrors behind",
                    "Workers of which a replica does not know what their writer knows.",
                    (
                        Query(
                            f"count by (instance) (gateway_mirror_current{{{REPLICA}}}) "
                            f"- sum by (instance) (gateway_mirror_current{{{REPLICA}}})",
                            "{{instance}}",
                        ),
                    ),
                    lowest=0,
                ),
                Panel(
                    "Loads, refills, takeovers",
                    "Over the time shown: workers loaded whole from Redis, written whole to it, writers that "
                    "took over or were fenced off.",
                    (
                        Query(
                            f"sum by (reason) (increase(gateway_mirror_loads_total{{{REPLICA}}}[$__range]))",
                            "loaded: {{reason}}",
                            now=True,
                        ),
                        Query(
                            f"sum by (reason) (increase(gateway_redis_refills_total{{{REPLICA}}}[$__range]))",
                            "refilled: {{reason}}",
                            now=True,
                        ),
                        Query(
                            f"sum (increase(gateway_writer_takeovers_total{{{REPLICA}}}[$__range]))",
                            "taken over",
                            now=True,
                        ),
                        Query(
                            f"sum (increase(gateway_writer_fenced_total{{{REPLICA}}}[$__range]))",
                            "fenced off",
                            now=True,
                        ),
                    ),
                    kind="bargauge",
                    quiet=True,
                ),
            ),
        ),
        Row(
            "Redis",
            (
                _each(
                    "Redis answers",
                    "1 while it does, as each replica sees it.",
                    f"gateway_redis_up{{{REPLICA}}}",
                ),
                Panel(
                    "Command time, p99",
                    "No request waits for it; a slow Redis makes mirrors late.",
                    (
                        Query(
                            quantile(0.99, "gateway_redis_command_seconds", REPLICA, "command"), "{{command}}"
                        ),
                    ),
                    unit="s",
                    lowest=0,
                ),
                Panel(
                    "Commands that failed",
                    "By kind, a second.",
                    (Query(per_second("gateway_redis_failures_total", REPLICA, "kind"), "{{kind}}"),),
                    lowest=0,
                    quiet=True,
                ),
                _each(
                    "Changes that wait for Redis",
                    "Entries that its writer has and Redis does not yet.",
                    f"sum by (instance) (gateway_redis_pending_entries{{{REPLICA}}})",
                ),
                Panel(
                    "Commands",
                    "A second, by command.",
                    (
                        Query(
                            per_second("gateway_redis_command_seconds_count", REPLICA, "command"),
                            "{{command}}",
                        ),
                    ),
                    unit="ops",
                    lowest=0,
                    stacked=True,
                ),
                _each(
                    "Placements never told",
                    "Peers did not learn where these requests went; a second.",
                    f"rate(gateway_sharing_placements_dropped_total{{{REPLICA}}}{RATE})",
                ),
            ),
        ),
        Row(
            "The gateway's own tasks",
            (
                Panel(
                    "Own tasks that failed",
                    "Over the time shown; each was begun again. Anything here is a fault of the gateway's: its "
                    "log has the error.",
                    (
                        Query(
                            f"sum by (task) (increase(gateway_tasks_failed_total{{{REPLICA}}}[$__range]))",
                            "{{task}}",
                            now=True,
                        ),
                    ),
                    kind="bargauge",
                    width=24,
                    quiet=True,
                ),
            ),
        ),
    ),
)
