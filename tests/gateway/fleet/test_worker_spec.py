"""What an operator writes of a worker."""

import json
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.fleet.spec import parse_worker, read_workers_file, worker_from
from gateway.fleet.worker import WorkerSpec


def test_a_line_with_every_field() -> None:
    line = (
        "http://10.0.0.7:8000/,events=tcp://10.0.0.7:5557,replay=tcp://10.0.0.7:5558,topic=kv-events,"
        "model=qwen,block_size=32,capacity=4096,max_requests=64,weight=2.5,dp_rank=1"
    )
    spec = parse_worker(line)
    assert spec == WorkerSpec(
        url="http://10.0.0.7:8000",
        events="tcp://10.0.0.7:5557",
        replay="tcp://10.0.0.7:5558",
        topic="kv-events",
        model="qwen",
        block_size=32,
        capacity_blocks=4096,
        max_requests=64,
        weight=2.5,
        dp_rank=1,
    )
    assert spec.id == "http://10.0.0.7:8000#dp1"


def test_an_address_alone() -> None:
    assert parse_worker("https://[::1]:8000") == WorkerSpec(url="https://[::1]:8000")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("10.0.0.7:8000", "a URL like http://"),
        ("ftp://10.0.0.7", "a URL like http://"),
        ("http://", "host or port"),
        ("http://h:99999", "ort"),
        ("http://h:0", "host or port"),
        ("http://user:secret@h", "credentials"),
        ("http://h/?a=1", "no query"),
        ("http://h,events", "not name=value"),
        ("http://h,evnts=tcp://h:1", "unknown field 'evnts'; known: url, events, replay"),
        ("http://h,events=tcp://*:5557", "needs the host"),
        ("http://h,events=h:5557", "tcp://127.0.0.1:5557"),
        ("http://h,events=tcp://h", "tcp://127.0.0.1:5557"),
        ("http://h,block_size=0", "from 1 to 999,999,999"),
        ("http://h,block_size=-16", "from 1 to 999,999,999"),
        ("http://h,max_requests=many", "from 1 to 999,999,999"),
        ("http://h,weight=0", "from 0.001 to 1,000"),
        ("http://h,weight=nan", "from 0.001 to 1,000"),
        ("http://h,weight=1e308", "from 0.001 to 1,000"),
        ("http://h,weight=5e-324", "from 0.001 to 1,000"),
        ("http://h,block_size=1000000000", "from 1 to 999,999,999"),
        ("http://h,dp_rank=x", "from 0"),
        ("http://h,model=a,model=b", "given twice"),
    ],
)
def test_what_is_wrong_is_named(line: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_worker(line)
    assert says in error.value.message


@pytest.mark.parametrize(
    "line",
    [
        "http://gw:hunter2@h:1",
        "http://gw:hunter2/w@h:1",
        "http://gw:hunter2,w@h:1",
        "http://gw:hunter2#@h",
        "http://gw:hunter2[@h",
        "http://gw:1/hunter2@h",
        "http://h,events=tcp://gw:hunter2@h:1",
        "http://h,replay=tcp://gw:hunter2/@h:1",
        "gw:hunter2@h",
    ],
)
def test_a_password_is_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_worker(line)
    assert "hunter2" not in error.value.message
    url, _, option = line.partition(",")
    name, equals, value = option.partition("=")
    with pytest.raises(ConfigError) as error:
        worker_from({"url": url, name: value} if equals else {"url": line})
    assert "hunter2" not in error.value.message


ENTRIES = ["http://a:1,weight=2", {"url": "http://b:1", "max_requests": 8, "model": None}]
SPECS = [WorkerSpec("http://a:1", weight=2.0), WorkerSpec("http://b:1", max_requests=8)]


@pytest.mark.parametrize("data", [ENTRIES, {"workers": ENTRIES}])
def test_a_file_of_lines_and_mappings(tmp_path: Path, data: object) -> None:
    file = tmp_path / "workers.json"
    file.write_text(json.dumps(data))
    assert read_workers_file(file) == SPECS


def test_a_yaml_file(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text("workers:\n- http://a:1,weight=2\n- url: http://b:1\n  max_requests: 8\n")
    assert read_workers_file(file) == SPECS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- http://a:1\n- http://a:1\n", "listed twice"),
        ("a: b", "a list of workers"),
        ("- 7", "entry 1 is neither"),
        ("- weight: 2", "url is missing"),
        ("[", "line 1: not YAML"),
        ("- {url: 'http://a:1', topic: 2026-13-01}", "line 1: what stands there is not a date"),
        ("- url: http://a:1\n  weight: 1\n  weight: 2", "line 3: 'weight' stands here again, after line 2"),
        ("workers: []\nworkers: []", "line 2: 'workers' stands here again"),
    ],
)
def test_a_file_that_cannot_work(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_workers_file(file)
    assert error.value.message.startswith(f"workers file {file}: ")
    assert says in error.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_workers_file(tmp_path / "none.yaml")
