"""When Redis counts as well again."""

from __future__ import annotations

from gateway.store.health import MOST_SUBJECTS, Health


def up(*, parts: bool) -> Health:
    health = Health(parts=parts)
    health.succeeded("w", False, 0.0)
    assert (health.up, health.answers, health.since) == (True, True, None)
    return health


def test_one_server_is_up_with_its_next_answer() -> None:
    health = up(parts=False)
    health.failed("timeout", "a", 1.0, 10.0)
    assert (health.up, health.answers, health.since) == (False, False, 10.0)
    health.succeeded("b", False, 10.1)
    assert (health.up, health.answers) == (True, True)


def test_what_failed_for_writing_is_over_with_a_write() -> None:
    for kind in ("readonly", "out_of_memory"):
        health = up(parts=False)
        health.failed(kind, "a", 1.0, 10.0)
        assert (health.up, health.answers) == (False, True)
        health.succeeded("a", False, 1000.0)
        assert not health.up
        health.failed("unavailable", "a", 1.0, 1001.0)
        health.succeeded("a", False, 1002.0)
        assert not health.up, "a restart alone does not show that it takes writes"
        health.succeeded("b", True, 1002.0)
        assert health.up


def test_a_part_answers_for_itself() -> None:
    health = up(parts=True)
    health.failed("unavailable", "a", 1.0, 10.0)
    health.failed("timeout", "b", 1.0, 11.0)
    health.succeeded("c", True, 12.0)
    health.succeeded("a", False, 12.0)
    assert not health.up
    health.succeeded("b", False, 12.0)
    assert health.up
    health.failed("timeout", "b", 11.0, 20.0)
    health.succeeded("c", True, 23.9)
    assert not health.up
    health.succeeded("c", False, 24.0)  # 2 s for a command of 11 s, 2 s of quiet
    assert health.up


def test_a_full_part_needs_a_write_too() -> None:
    health = up(parts=True)
    health.failed("out_of_memory", "a", 1.0, 10.0)
    health.succeeded("a", False, 11.0)
    health.succeeded("c", True, 12.9)
    health.succeeded("c", False, 20.0)
    assert not health.up
    health.succeeded("c", True, 20.0)
    assert health.up


def test_keys_that_the_user_may_not_use_are_a_part() -> None:
    health = up(parts=False)
    health.failed("forbidden", "a", 1.0, 10.0)
    health.succeeded("b", True, 12.9)
    assert (health.up, health.answers) == (False, True)
    health.succeeded("a", True, 12.9)
    assert health.up


def test_a_refused_command_is_an_answer() -> None:
    health = up(parts=False)
    health.failed("refused", "a", 1.0, 10.0)
    assert (health.up, health.answers) == (True, True)


def test_not_every_key_that_failed_is_kept() -> None:
    health = up(parts=True)
    for number in range(2 * MOST_SUBJECTS):
        health.failed("unavailable", f"{number}", 1.0, 10.0)
    for number in range(2 * MOST_SUBJECTS):
        health.succeeded(f"{number}", True, 12.9)
    assert not health.up
    health.succeeded("0", False, 13.0)
    assert health.up
