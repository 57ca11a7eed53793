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
    certificate that is not trusted, a server that evicts. One that does not answer is only reported: it may
    come."""
    try:
        with store.hushed():
            await store.check()
    except StoreError as error:
        if error.kind == "certificate" and not wait:
            raise ConfigError(
                f"the certificate of Redis at {store.url} is not trusted: {error.message.rstrip('.')}; give "
                "its CA as ?ca=PATH in --redis-url, and the name that the certificate is for "
                "(docs/redis.md); --redis-wait goes on without it meanwhile"
            ) from error
        if error.kind in ("auth", "forbidden") and not wait:
            raise ConfigError(
                f"Redis at {store.url} refuses us: {error.message.rstrip('.')}; check user and password in "
                f"--redis-url, and the user's rights to keys and channels {store.keys.prefix}:* "
                "(docs/redis.md); "
                "--redis-wait goes on without it meanwhile"
            ) from error
        if error.kind in ("unavailable", "timeout") and (hint := await other_scheme(store.url)):
            error = StoreError(f"{error.message.rstrip('.')}; {hint}", kind=error.kind)
        store.say(error)
    except ConfigError as error:
        if not wait:
            raise
        log.error("%s", error.message)
