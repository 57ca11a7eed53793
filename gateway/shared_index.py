"""The index as replicas share it, put together: the connection to Redis, and what every follower needs."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from gateway.api.knowledge import ShareMetrics
from gateway.errors import ConfigError, StoreError
from gateway.events.balance import Balance
from gateway.events.share import Share, SharedIndex
from gateway.events.share_observers import ShareObserver
from gateway.index.replication.shelf import load_scripts
from gateway.settings import Settings
from gateway.store.connection import Store
from gateway.store.scheme import other_scheme
from gateway.store.url import parse_store_url
from gateway.types import Clock

log = logging.getLogger(__name__)


def make_store(settings: Settings, observer: ShareMetrics) -> Store | None:
    """None where this replica is alone. Raises ConfigError for a URL that can't be one."""
    if settings.redis_url is None:
        return None
    password = settings.redis_password
    return Store(
        parse_store_url(settings.redis_url, None if password is None else password.get_secret_value()),
        prefix=settings.redis_prefix,
        timeout=settings.redis_timeout,
        observer=observer,
    )


def make_share(
    store: Store,
    owner: str,
    index: SharedIndex,
    observer: ShareObserver,
    clock: Clock,
    random: Callable[[], float],
) -> Share:
    return Share(
        store=store,
        scripts=load_scripts(),
        owner=owner,
        index=index,
        observer=observer,
        clock=clock,
        random=random,
        # epochs of different lives must never meet, whatever a test's seed says
        new_epoch=lambda: secrets.token_hex(8).encode(),
        balance=Balance(random),
    )


async def check_store(store: Store, *, wait: bool) -> None:
    """Raises ConfigError for what waiting does not mend, unless told to wait: a refused password, a
    certificate that either side does not trust, a server of another kind than the URL says, one that evicts.
    One that does not answer is only reported: it may come."""
    try:
        with store.hushed():
            await store.check()
    except StoreError as error:
        if not wait and (why := _for_good(error, store)):
            raise ConfigError(f"{why} (docs/redis.md); --redis-wait goes on without it meanwhile") from error
        if error.kind in ("unavailable", "timeout") and (hint := await other_scheme(store.url)):
            error = StoreError(f"{error.message.rstrip('.')}; {hint}", kind=error.kind)
        store.say(error)
    except ConfigError as error:
        if not wait:
            raise
        log.error("%s", error.message)


def _for_good(error: StoreError, store: Store) -> str:
    """What is wrong and what to do, where waiting does not mend it; otherwise empty."""
    said = error.message.rstrip(".")
    match error.kind:
        case "certificate" if "CERTIFICATE_VERIFY_FAILED" in said:
            return (
                f"the certificate of Redis at {store.url} is not trusted: {said}; give its CA as ?ca=PATH in "
                "--redis-url, and the name that the certificate is for"
            )
        case "certificate":
            return (
                f"Redis at {store.url} wants a certificate of ours that it trusts: {said}; give it as "
                "?cert=PATH&key=PATH in --redis-url"
            )
        case "auth" | "forbidden":
            return (
                f"Redis at {store.url} refuses us: {said}; check user and password in --redis-url, and the "
                f"user's rights to keys and channels {store.keys.prefix}:*"
            )
        case "wrong_url":
            return (
                f"Redis at {store.url} is not what --redis-url says: {said}; check the database behind the "
                "host, and whether it is one server (redis://), a Sentinel (redis+sentinel://) or a cluster "
                "(redis+cluster://)"
            )
        case _:
            return ""
