"""What a dashboard is made of, and its Grafana JSON (schema 39: Grafana 10 and later)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

TAG = "prefix-gateway"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24

# selectors: what the variables at the top of a board choose
REPLICA = 'namespace=~"$namespace",job=~"$job",instance=~"$replica"'
MODEL = f'{REPLICA},model=~"$model"'
WORKER = f'{MODEL},worker=~"$worker",worker!=""'  # requests that nobody took have none
ENGINE = 'namespace=~"$namespace",model_name=~"$model"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""
    table: bool = False
    """One row a series, as it stands now."""
    now: bool = False
    """One value a series: it looks back by itself."""
    heatmap: bool = False


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    lowest: float | None = None
    highest: float | None = None
    stacked: bool = False
    steps: tuple[tuple[float | None, str], ...] = ()
    """Thresholds: (from, colour), the first one from None."""
    quiet: bool = False
    """No data is good news: series are born with their first trouble."""
    overrides: tuple[Json, ...] = ()
    options: Json = field(default_factory=dict)
    transformations: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Json, ...] = ()
    refresh: str = "10s"

    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]


def on_the_right(legend: str, unit: str) -> Json:
    """Another unit than the panel's, on an axis of its own."""
    return {
        "matcher": {"id": "byName", "options": legend},
        "properties": [{"id": "unit", "value": unit}, {"id": "custom.axisPlacement", "value": "right"}],
    }


def label_variable(
    name: str, label: str, metric: str, key: str, text: str, everything: str | None = ".*"
) -> Json:
    """A multi-value variable with everything chosen at first. `everything` is what All stands for; None: the
    values that there are, and no other job's."""
    query = f"label_values({metric}, {key})"
    return {
        "name": name, "label": label, "description": text, "type": "query", "datasource": DATASOURCE,
        "definition": query, "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1,
        "multi": True, "includeAll": True, "allValue": everything,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def text_variable(name: str, label: str, value: str, text: str) -> Json:
    return {
        "name": name, "label": label, "description": text, "type": "textbox", "query": value,
        "current": {"text": value, "value": value}, "options": [{"text": value, "value": value}],
    }  # fmt: skip


def _common_variables() -> list[Json]:
    source = {
        "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
        "current": {}, "refresh": 1, "regex": "",
    }  # fmt: skip
    return [
        source,
        label_variable(
            "namespace",
            "Namespace",
            "gateway_build_info",
            "namespace",
            "Of Kubernetes, with the engines that are in it too. All also where there is none.",
        ),
        label_variable(
            "job",
            "Job",
            'gateway_build_info{namespace=~"$namespace"}',
            "job",
            "The scrape job of the gateways.",
            None,
        ),
        label_variable(
            "replica",
            "Replica",
            'gateway_build_info{namespace=~"$namespace",job=~"$job"}',
            "instance",
            "One gateway process.",
            None,
        ),
        label_variable(
            "model", "Model", f"gateway_worker_ready{{{REPLICA}}}", "model", "As the engines name it."
        ),
    ]


def dashboard(board: Board) -> Json:
    return {
        "uid": board.uid,
        "title": f"Prefix gateway / {board.title}",
        "description": board.description,
        "tags": [TAG],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": board.refresh,
        "links": [
            {
                "type": "dashboards", "title": "Boards", "tags": [TAG], "asDropdown": False,
                "includeVars": True, "keepTime": True, "targetBlank": False, "icon": "dashboard",
                "tooltip": "The other boards, with the same choice and time", "url": "",
            }
        ],
        "annotations": {
            "list": [
                {
                    "name": "Alerts", "enable": True, "hide": False, "iconColor": "red",
                    "datasource": DATASOURCE, "titleFormat": "{{alertname}}", "textFormat": "{{worker}}",
                    "expr": 'ALERTS{alertname=~"PrefixGateway.*",alertstate="firing"}', "step": "30s",
                }
            ]
        },
        "templating": {"list": [*_common_variables(), *board.variables]},
        "panels": _layout(board.rows),
    }  # fmt: skip


def places(rows: Sequence[Row]) -> list[tuple[int, int, Row | Panel]]:
    """(x, y, what stands there): each row's heading, then its panels from left to right, a new line where the
    width is used up."""
    found: list[tuple[int, int, Row | Panel]] = []
    y = 0
    for row in rows:
        found.append((0, y, row))
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                y, x, tallest = y + tallest, 0, 0
            found.append((x, y, panel))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return found


def _layout(rows: Sequence[Row]) -> list[Json]:
    out: list[Json] = []
    for number, (x, y, item) in enumerate(places(rows), 1):
        if isinstance(item, Row):
            head = {"type": "row", "title": item.title, "collapsed": False, "panels": []}
            out.append({**head, "id": number, "gridPos": {"x": x, "y": y, "w": COLUMNS, "h": 1}})
        else:
            place = {"x": x, "y": y, "w": item.width, "h": item.height}
            out.append({**_panel(item), "id": number, "gridPos": place})
    return out


def _panel(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit, "color": {"mode": "palette-classic"}}
    if panel.lowest is not None:
        defaults["min"] = panel.lowest
    if panel.highest is not None:
        defaults["max"] = panel.highest
    if panel.steps:
        defaults["thresholds"] = {
            "mode": "absolute",
            "steps": [{"value": value, "color": colour} for value, colour in panel.steps],
        }
        defaults["color"] = {"mode": "thresholds"}
    if panel.quiet:
        defaults["noValue"] = "none"
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line", "lineWidth": 1, "fillOpacity": 20 if panel.stacked else 8,
            "showPoints": "never", "spanNulls": 60_000,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }  # fmt: skip
        if panel.steps:
            defaults["color"] = {"mode": "palette-classic"}
            defaults["custom"]["thresholdsStyle"] = {"mode": "dashed"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [_target(query, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults, "overrides": list(panel.overrides)},
        "options": {**_OPTIONS.get(panel.kind, {}), **panel.options},
        "transformations": list(panel.transformations),
    }


def _target(query: Query, ref: str) -> Json:
    instant = query.table or query.now
    target: Json = {
        "refId": ref, "expr": query.expr, "datasource": DATASOURCE, "editorMode": "code",
        "legendFormat": query.legend or "__auto", "range": not instant, "instant": instant,
    }  # fmt: skip
    if query.table:
        target["format"] = "table"
    if query.heatmap:
        target["format"] = "heatmap"
    return target


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": _LAST, "colorMode": "value", "graphMode": "area", "justifyMode": "auto",
        "textMode": "auto",
    },
    "gauge": {"reduceOptions": _LAST, "showThresholdMarkers": True},
    "bargauge": {"reduceOptions": _LAST, "displayMode": "basic", "orientation": "horizontal"},
    "table": {"showHeader": True, "cellHeight": "sm"},
    "heatmap": {
        "calculate": False, "cellGap": 1, "yAxis": {"unit": "s"},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64}, "tooltip": {"mode": "single"},
    },
}  # fmt: skip
