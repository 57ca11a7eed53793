"""The study's tables as Markdown, and how they get into its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.ending import write
from benchmarks.replay.aggregate import Line, Point, alike, baselines, grouped, lines, only
from benchmarks.replay.beside import beside
from benchmarks.replay.cases import FLOOR, Row
from benchmarks.replay.grid import DEFAULT, Experiment
from benchmarks.replay.provenance import Origin
from benchmarks.replay.report import markdown
from benchmarks.replay.verdicts import GOODPUT_OF_BEST, Verdict, verdicts

_COLUMNS: Sequence[tuple[str, Callable[[Line], str]]] = (
    ("hit rate", lambda x: f"{x.hit_rate:.3f}"),
    ("of pooled", lambda x: f"{x.of_pooled:.2f}"),
    ("busiest/mean", lambda x: f"{x.balance:.2f}"),
    ("TTFT p50 s", lambda x: f"{x.p50_s:.3f}"),
    ("p90", lambda x: f"{x.p90_s:.2f}"),
    ("p99", lambda x: f"{x.p99_s:.2f}"),
    ("× floor p50", lambda x: f"{x.p50_x:.2f}"),
    ("× floor p99", lambda x: f"{x.p99_x:.2f}"),
    ("its seeds", lambda x: f"{x.p99_low:.2f}…{x.p99_high:.2f}"),
    ("TPOT p99 ms", lambda x: f"{1e3 * x.tpot_p99_s:.0f}"),
    ("goodput/s", lambda x: f"{x.goodput:.2f}"),
    ("of floor's", lambda x: f"{x.goodput_x:.3f}"),
)


def tables(
    experiments: Mapping[str, Experiment],
    rows: Mapping[str, Sequence[Row]],
    origins: Sequence[Origin],
) -> dict[str, str]:
    """Markdown by marker: one for each experiment, one more for each that stands beside another, `targets`
    (of the traces as they are), `traffic` and `traffic-policies` (of what was made of them), and `machine`.
    `rows` are theirs, and of those beside which they stand."""
    found = {name: _points(rows[name]) for name in experiments}
    told = "; ".join(map(str, origins))
    seeds = "; ".join(f"{name} {_seeds(experiment)}" for name, experiment in experiments.items())
    return {
        **found,
        **{
            f"{name}-beside": beside(rows[name], rows[one.beside])
            for name, one in experiments.items()
            if rows.get(one.beside)
        },
        "machine": f"Computed: {told}. Seeds: {seeds}.",
        "targets": targets(_only(experiments, changed=False), rows),
        "traffic": targets(_only(experiments, changed=True), rows),
        "traffic-policies": side_by_side(_only(experiments, changed=True), rows),
    }


def targets(experiments: Mapping[str, Experiment], rows: Mapping[str, Sequence[Row]]) -> str:
    """One line a point: where the default stands against floor, bound and baselines. Those that nobody has
    computed are taken from the experiment beside which this one stands, as far as its points are the same;
    a point without any is passed over."""
    head = (
        "experiment",
        "blocks",
        "rate",
        "× floor p99",
        "bound p99 ÷ floor's",
        "must be later, of who may",
        "× floor p50",
        "of pooled hit rate",
        "busiest/mean",
        "whole sessions', known and not",
        "baselines better in both",
        "p99 ÷ best baseline's",
        "goodput ÷ best other family's",
        "floor's goodput ÷ the same",
        "bound of goodput ÷ the same",
    )
    body = []
    for name, experiment in experiments.items():
        if experiment.knee is None:
            continue
        beside = grouped(alike(rows[name], rows.get(experiment.beside, ())))
        for point, own in grouped(rows[name]).items():
            found = lines(own)
            if not baselines(found):
                found += baselines(lines(beside.get(point, ())))
            if not baselines(found):
                continue
            told = {v.name: v for v in verdicts(found, point[3], experiment.knee)}
            floor, default = only(found, FLOOR), only(found, DEFAULT)
            others = default.goodput / told["goodput"].figure
            body.append(
                (
                    name,
                    str(point[2]),
                    f"{point[3]:g}",
                    _cell(told["p99"]),
                    f"{floor.bound_p99_s / floor.p99_s:.2f}",
                    f"{floor.bound_late} of {floor.late_allowed}",
                    _cell(told["p50"]),
                    _cell(told["hit rate"]),
                    _cell(told["balance"]),
                    f"{floor.sessions_balance:.2f} {floor.sessions_balance_unknown:.2f}",
                    _cell(told["not dominated"], "{:.0f}"),
                    _cell(told["best p99"]),
                    _cell(told["goodput"], "{:.3f}"),
                    f"{floor.goodput / others:.3f}",
                    _possible(floor.bound_goodput / others),
                )
            )
    return markdown(head, body)


def side_by_side(experiments: Mapping[str, Experiment], rows: Mapping[str, Sequence[Row]]) -> str:
    """One line a policy and one column a point: its p99 as a share of the floor's."""
    columns = [
        (name, {line.policy: line for line in lines(own)})
        for name in experiments
        for own in grouped(rows[name]).values()
    ]
    policies = dict.fromkeys(policy for _name, found in columns for policy in found if policy != FLOOR)
    body = [
        (
            f"**{policy}**" if policy == DEFAULT else policy,
            *(f"{found[policy].p99_x:.2f}" if policy in found else "–" for _name, found in columns),
        )
        for policy in policies
    ]
    return markdown(("policy", *(name for name, _found in columns)), body)


def write_between(page: Path, texts: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``; markers that the page
    has not are passed over, and those without a text keep what they have."""
    content = page.read_text(encoding="utf-8")
    for name, text in texts.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        head, found, rest = content.partition(begin)
        _old, closed, tail = rest.partition(end)
        if found and closed:
            content = f"{head}{begin}{text}\n{end}{tail}"
    write(page, content)


def _only(experiments: Mapping[str, Experiment], *, changed: bool) -> Mapping[str, Experiment]:
    return {name: one for name, one in experiments.items() if one.changed == changed}


def _points(rows: Sequence[Row]) -> str:
    return "\n\n".join(_table(point, lines(own)) for point, own in grouped(rows).items())


def _table(point: Point, found: Sequence[Line]) -> str:
    trace, workers, blocks, rate, profile = point
    first = found[0]
    title = (
        f"{trace}: {workers} × {profile}, {blocks} blocks each, {rate:g} requests/s, {first.seeds} seeds. "
        f"No router at all: TTFT p50 ≥ {first.bound_p50_s:.3f} s, p99 ≥ {first.bound_p99_s:.2f} s, "
        f"goodput ≤ {first.bound_goodput:.2f}/s. Busiest/mean of whole sessions: "
        f"{first.sessions_balance:.2f} as they come, {first.sessions_balance_sorted:.2f} sorted, "
        f"{first.sessions_balance_unknown:.2f} where nothing is known."
    )
    body = [(_label(line), *(form(line) for _heading, form in _COLUMNS)) for line in found]
    return f"{title}\n\n" + markdown(("policy", *(heading for heading, _form in _COLUMNS)), body)


def _label(line: Line) -> str:
    name = f"**{line.policy}**" if line.default else line.policy
    if line.max_ttft_s:
        name += f", late ones refused ({line.refused:.1%})"
    if line.slice_after_s and line.policy != FLOOR:  # that one has no gateway
        name += f", slices after {line.slice_after_s:g} s"
    if line.replicas == 1:
        return name
    return f"{name}, {line.replicas} replicas" + ("" if line.shared else ", nothing shared")


def _cell(verdict: Verdict, form: str = "{:.2f}") -> str:
    mark = {True: " ✓", False: " ✗", None: ""}[verdict.met]
    who = f" ({verdict.who})" if verdict.who and verdict.met is False else ""
    return form.format(verdict.figure) + mark + who


def _possible(share: float) -> str:
    """A bound below the target says that nobody meets it."""
    return f"{share:.3f}" + (" (out of reach)" if share < GOODPUT_OF_BEST else "")


def _seeds(experiment: Experiment) -> str:
    return " ".join(map(str, experiment.seeds))
