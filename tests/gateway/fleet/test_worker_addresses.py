"""Where a worker that is added at run time may be (server-side request forgery)."""

from __future__ import annotations

import pytest

from gateway.errors import ConfigError, Forbidden, InvalidRequest
from gateway.fleet.addresses import AddressRules, system_resolve, vetted
from gateway.fleet.spec import worker_from
from gateway.fleet.worker import WorkerSpec
from gateway.settings_load import load

pytestmark = pytest.mark.anyio

DEFAULT = AddressRules.of(load({}).worker_networks, own=(("127.0.0.1", 8080), ("0.0.0.0", 8081)))
NAMES = {
    "engine-1": ["10.0.0.7"],
    "dual": ["fd12::7", "10.0.0.7"],
    "half": ["10.0.0.7", "169.254.169.254"],
    "metadata": ["169.254.169.254"],
    "mapped": ["::ffff:169.254.169.254"],
    "public": ["93.184.215.14"],
}


async def resolve(host: str) -> list[str]:
    if host not in NAMES:
        raise OSError("no such name")
    return NAMES[host]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://169.254.169.254:80",
        "http://[fe80::1]:8000",
        "http://[fd00:ec2::254]:80",
        "http://100.100.100.200",
        "http://[::ffff:169.254.169.254]:80",
        "http://[::ffff:a9fe:a9fe]:80",
        "http://93.184.215.14:8000",
        "http://[2606:4700::1111]:8000",
        "http://0.0.0.0:8000",
        "http://[::]:8000",
        "http://224.0.0.1:8000",
        "http://metadata:80",
        "http://mapped:80",
        "http://half:8000",
        "http://public:8000",
        "https://public:8000",
        "http://127.0.0.1:8080",  # the gateway itself
        "http://127.0.0.1:8081",
        "http://[::ffff:127.0.0.1]:8081",
        "http://127.0.0.2:8080",
        "http://[::1]:8080",
        "http://[::ffff:127.0.0.9]:8080",
        "http://10.0.0.7:8000/../admin",
        "http://10.0.0.7:8000/a/%2e%2E/admin",
        "http://10.0.0.7:8000/..%5cadmin",
    ],
)
async def test_where_no_worker_may_be(url: str) -> None:
    with pytest.raises(Forbidden):
        await vetted(WorkerSpec(url), DEFAULT, resolve)


@pytest.mark.parametrize(
    ("url", "becomes"),
    [
        ("http://127.0.0.1:8101", "http://127.0.0.1:8101"),
        ("http://10.0.0.7:8000/v", "http://10.0.0.7:8000/v"),
        ("http://[fd12::7]:8000", "http://[fd12::7]:8000"),
        # a name over plain HTTP is pinned to what was checked, so that it can't lead elsewhere later
        ("http://engine-1:8000", "http://10.0.0.7:8000"),
        ("http://engine-1", "http://10.0.0.7"),
        ("http://dual:8000/v", "http://[fd12::7]:8000/v"),
        # over HTTPS its certificate says whether it is still the same
        ("https://engine-1:8000", "https://engine-1:8000"),
    ],
)
async def test_where_workers_live(url: str, becomes: str) -> None:
    assert (await vetted(WorkerSpec(url), DEFAULT, resolve)).url == becomes


async def test_event_endpoints_are_held_to_the_same() -> None:
    good = WorkerSpec("http://engine-1:8000", events="tcp://engine-1:5557", replay="tcp://10.0.0.7:5558")
    found = await vetted(good, DEFAULT, resolve)
    assert (found.events, found.replay) == ("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558")
    for bad in (
        WorkerSpec("http://engine-1:8000", events="tcp://metadata:80"),
        WorkerSpec("http://engine-1:8000", events="tcp://10.0.0.7:1", replay="tcp://169.254.169.254:80"),
        WorkerSpec("http://engine-1:8000", events="ipc:///run/docker.sock"),
    ):
        with pytest.raises(Forbidden):
            await vetted(bad, DEFAULT, resolve)


async def test_a_name_without_an_address() -> None:
    with pytest.raises(InvalidRequest, match="no address"):
        await vetted(WorkerSpec("http://nowhere:8000"), DEFAULT, resolve)


async def test_other_ways_to_write_an_address_mean_what_they_mean() -> None:
    """The system's resolver takes 2852039166 and 0xa9fea9fe for 169.254.169.254, as connect would."""
    for host in ("2852039166", "0xa9fea9fe", "0251.0376.0251.0376"):
        with pytest.raises((Forbidden, InvalidRequest)):
            await vetted(WorkerSpec(f"http://{host}:80"), DEFAULT, system_resolve)
    assert (await vetted(WorkerSpec("http://localhost:8101"), DEFAULT, system_resolve)).url in (
        "http://127.0.0.1:8101",
        "http://[::1]:8101",
    )


async def test_an_operator_widens_or_narrows_the_networks() -> None:
    narrow = AddressRules.of(["10.1.0.0/16", "93.184.215.0/24", "169.254.0.0/16"])
    assert (
        await vetted(WorkerSpec("http://public:8000"), narrow, resolve)
    ).url == "http://93.184.215.14:8000"
    for url in ("http://10.2.0.1:8000", "http://127.0.0.1:8000", "http://metadata:80"):
        with pytest.raises(Forbidden):
            await vetted(WorkerSpec(url), narrow, resolve)
    with pytest.raises(ConfigError, match="worker networks"):
        AddressRules.of(["10.0.0.0/99"])


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "gopher://10.0.0.7:70", "ftp://10.0.0.7", "http://user:pw@10.0.0.7", "http://10.0.0.7?x=1",
     "http://10.0.0.7:99999", "http://", "10.0.0.7:8000", "unix:///run/docker.sock"],
)  # fmt: skip
def test_urls_of_other_kinds_are_no_workers(url: str) -> None:
    with pytest.raises(ConfigError):
        worker_from({"url": url})
