"""Two replicas, one engine, a real Redis: who writes, who mirrors, and what each disturbance costs: nothing
that does not come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.api.knowledge import Knowledge
from gateway.errors import StoreError
from gateway.index.replication.verify import audit
from tests.gateway.replication.rig import Replica, W, eventually, group
from tests.servers import cluster, free_tcp_port, sentinel_group, standalone

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


async def test_one_writes_the_other_mirrors_and_both_know_the_same(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            await pair.engine.remove(5)
            await pair.engine.store(3)
            await pair.converged()
            assert len(pair.mirror.copies()) == 18
            for replica in pair.replicas:
                found = await audit(replica.follower.shelf, replica.follower.stand, replica.index)
                assert (found.state, found.blocks) == ("clean", 18)


async def test_a_replica_that_joins_later_loads_what_is_there(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as fleet:
            await fleet.engine.store(100)
            await fleet.converged()
            third = fleet.join()
            await fleet.converged()
            assert len(third.copies()) == 100
            await eventually(lambda: third.observer.heard == [("loaded", "start")])


async def test_a_dead_writer_is_succeeded_without_loss_or_doubling(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            dead, heir = pair.writer, pair.mirror
            await dead.die()
            await pair.engine.store(4)
            await pair.converged()
            assert heir.role == "writer"
            assert ("refilled", "no books") not in heir.observer.heard, "it goes on from the books in Redis"


async def test_a_mirror_keeps_what_it_knows_while_redis_is_away(tmp_path: Path) -> None:
    """Also one that wrote before and so never loaded: it does not begin anew for itself, which would ask the
    engine for all of its history."""
    with standalone(tmp_path) as server:
        async with group(server.url) as fleet:
            await fleet.engine.store(20)
            await fleet.converged()
            mirror = fleet.writer
            agent = fleet.join(beside=True)
            await eventually(lambda: agent.role == "writer")
            await fleet.converged()
            assert mirror.follower.share_status().loads == 0
            before, truth = mirror.store.status.failures, fleet.engine.truth()
            server.kill()
            await eventually(lambda: mirror.store.status.failures > before + 6)
            assert mirror.role == "mirror"
            assert mirror.copies() == truth
            server.start()
            await fleet.engine.store(2)
            await fleet.converged()


async def test_a_writer_that_leaves_in_order_is_succeeded(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            await pair.writer.leave()
            await pair.engine.remove(2)
            await pair.converged()


async def test_a_worker_is_handed_over_while_its_engine_goes_on(tmp_path: Path) -> None:
    """To the follower beside the engine, that came later. Nothing is lost, doubled or loaded again."""
    with standalone(tmp_path) as server:
        async with group(server.url) as fleet:
            await fleet.engine.store(20)
            await fleet.converged()
            before = fleet.writer
            heard = list(before.observer.heard)
            agent = fleet.join(beside=True)
            while agent.role != "writer":
                await fleet.engine.store(2)
                await fleet.engine.remove(1)
                await asyncio.sleep(0.02)
            await fleet.engine.remove(2)
            await fleet.converged()
            assert before.role == "mirror"
            assert [what for what, _ in agent.observer.heard] == ["loaded", "took over"]
            assert before.observer.heard == heard, "no load, no fence since"
            assert fleet.writer is agent, "and it stays"
            for replica in fleet.replicas:
                found = await audit(replica.follower.shelf, replica.follower.stand, replica.index)
                assert found.state == "clean"


async def test_an_engine_that_repeats_nothing_is_not_handed_over(tmp_path: Path) -> None:
    """A successor would miss what comes in between, and all that is known would be void."""
    with standalone(tmp_path) as server:
        async with group(server.url, movable=False) as fleet:
            await fleet.engine.store(20)
            await fleet.converged()
            before = fleet.writer
            agent = fleet.join(beside=True)
            await eventually(lambda: agent.follower.share_status().mirror == "following")
            renewals = await _renewals(before, 5)
            assert (renewals, fleet.writer) == (5, before)


async def _renewals(replica: Replica, count: int) -> int:
    """Waits for so many renewals of the lease that the replica holds."""
    store, key = replica.store, replica.store.keys.lease(W)
    seen, last = 0, 0
    while seen < count and replica.role == "writer":
        left = await store.command("PTTL", key)
        seen += left > last
        last = left
        await asyncio.sleep(0.02)
    return seen


async def test_a_cleared_worker_is_learned_anew_by_all(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            before = pair.mirror.follower.share_status().epoch
            await pair.mirror.follower.void()
            await eventually(lambda: all(r.follower.share_status().epoch != before for r in pair.replicas))
            await pair.converged()


async def test_redis_absent_at_the_start_each_follows_for_itself(tmp_path: Path) -> None:
    port = free_tcp_port()
    with standalone(tmp_path) as other:
        args = [str(port) if a == str(other.port) else a for a in other.args]
        async with group(f"redis://127.0.0.1:{port}") as pair:
            await pair.engine.store(20)
            await eventually(lambda: all(r.copies() == pair.engine.truth() for r in pair.replicas))
            assert [r.role for r in pair.replicas] == ["alone", "alone"]
            other.kill()
            other.port, other.args = port, args
            other.start()  # here it comes
            await pair.converged()


async def test_redis_killed_and_back_empty_is_refilled(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            assert sorted(r.follower.share_status().leased for r in pair.replicas) == [False, True]
            writer, mirror = pair.writer, pair.mirror
            server.kill()
            await pair.engine.store(5)
            await eventually(lambda: len(writer.copies()) == 25)  # its own engine tells it all the same
            assert len(mirror.copies()) == 20, "stale, and kept"
            assert not writer.store.status.up
            # by now another might write
            await eventually(lambda: not writer.follower.share_status().leased)
            assert writer.role == "writer"
            knowledge = Knowledge(writer.index, writer.store, lambda: {W: writer.follower})
            with pytest.raises(StoreError, match=rf"^Redis at {server.url[:-2]}.* failed: "):
                await knowledge.verify()
            with pytest.raises(StoreError, match=rf"^Redis at {server.url[:-2]}.* failed: "):
                await knowledge.clear(W)
            server.start()
            await pair.converged()
            assert sorted(r.follower.share_status().leased for r in pair.replicas) == [False, True]


async def test_an_emptied_redis_is_refilled(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            with server.client() as admin:
                admin.flushall()
            await pair.converged()
            await pair.engine.store(5)
            await pair.converged()


@pytest.mark.parametrize("key", ["held", "names", "meta", "changes", "lease"])
async def test_a_key_that_was_evicted_is_written_anew(tmp_path: Path, key: str) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            with server.client() as admin:
                assert admin.delete(getattr(pair.writer.store.keys, key)(W)) == 1

            async def clean() -> bool:
                return all(
                    [
                        (await audit(r.follower.shelf, r.follower.stand, r.index)).state == "clean"
                        for r in pair.replicas
                    ]
                )

            await eventually(clean)
            await pair.engine.store(5)
            await pair.converged()


@pytest.mark.parametrize("key", ["held", "names", "meta", "changes"])
async def test_a_key_that_is_deleted_between_batches_is_written_anew(tmp_path: Path, key: str) -> None:
    """The batch that comes before the next renewal must not wipe out the traces."""
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            store = pair.writer.store
            with server.client() as admin:
                for _ in range(3):
                    assert admin.delete(getattr(store.keys, key)(W)) == 1
                    number = pair.writer.follower.stand()
                    await pair.engine.store(2)
                    await pair.engine.remove(1)
                    await eventually(lambda: pair.writer.follower.stand() != number)  # noqa: B023
            await pair.converged()

            async def clean() -> bool:
                found = [await audit(r.follower.shelf, r.follower.stand, r.index) for r in pair.replicas]
                return [(f.state, f.blocks) for f in found] == [("clean", 23), ("clean", 23)]

            await eventually(clean)


async def test_a_redis_that_hangs_past_the_lease(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            server.pause()
            await pair.engine.store(5)
            await eventually(lambda: not any(r.store.status.up for r in pair.replicas))
            server.resume()
            await pair.converged()


@pytest.mark.parametrize("sick", ["readonly", "out of memory"])
async def test_a_redis_that_takes_no_writes(tmp_path: Path, sick: str) -> None:
    with standalone(tmp_path) as server:
        async with group(server.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            with server.client() as admin:
                if sick == "readonly":
                    admin.execute_command("REPLICAOF", "127.0.0.1", "1")
                else:
                    admin.config_set("maxmemory", "1")
                await pair.engine.store(5)
                failures = pair.writer.store.status.failures
                await eventually(lambda: pair.writer.store.status.failures > failures)
                if sick == "readonly":
                    admin.execute_command("REPLICAOF", "NO", "ONE")
                else:
                    admin.config_set("maxmemory", "0")
            await pair.converged()


async def test_a_sentinel_failover(tmp_path: Path) -> None:
    with sentinel_group(tmp_path) as watched:
        async with group(watched.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            watched.master.kill()
            await pair.engine.store(5)
            await pair.converged()


async def test_a_cluster_resharded_and_a_master_lost(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        async with group(nodes.url) as pair:
            await pair.engine.store(20)
            await pair.converged()
            key = pair.writer.store.keys.meta(W)
            owner = nodes.owner(key)
            heir = next(m for m in nodes.masters if m is not owner)
            nodes.move(key, heir)
            await pair.engine.store(5)
            await pair.converged()
            heir.kill()
            await pair.engine.store(5)
            writer = pair.writer
            await eventually(lambda: len(writer.copies()) == 30)
            heir.start()  # back, and empty
            await pair.converged()
