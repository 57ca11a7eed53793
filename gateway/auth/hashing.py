"""How keys are kept: never as they are, only as a hash that a presented key is checked against.

``sha256:<hex>`` is for keys with the entropy of `new_secret` (256 bits: nothing to guess, so nothing to slow
down). ``scrypt:<log2 n>:<r>:<p>:<salt hex>:<hex>`` is for secrets that people chose (RFC 7914).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from gateway.errors import ConfigError

PREFIX = "pgw_"
KINDS = ("sha256:", "scrypt:")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}\Z")
_SCRYPT = re.compile(r"scrypt:(\d{1,2}):(\d{1,2}):(\d{1,2}):([0-9a-f]{32,128}):([0-9a-f]{64})\Z")
_LOG_N, _R, _P = 15, 8, 1
"""32 MiB and some 60 ms a check."""


def new_secret() -> str:
    """A fresh key of 256 random bits; its prefix lets secret scanners find one that leaked."""
    return PREFIX + secrets.token_urlsafe(32)


def sha256_of(secret: str) -> str:
    return "sha256:" + hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def scrypt_of(secret: str, salt: bytes) -> str:
    """`salt`: at least 16 random bytes."""
    digest = _scrypt(secret, salt, _LOG_N, _R, _P)
    return f"scrypt:{_LOG_N}:{_R}:{_P}:{salt.hex()}:{digest.hex()}"


def checked_hash(text: str) -> str:
    """`text` where it is a hash of either kind. Raises ConfigError, which never repeats it: people put keys
    themselves where a hash belongs."""
    text = text.strip()
    if _SHA256.match(text):
        return text
    found = _SCRYPT.match(text)
    # bounds keep a key file from asking for gigabytes or minutes
    if found and 10 <= int(found[1]) <= 20 and 1 <= int(found[2]) <= 16 and 1 <= int(found[3]) <= 4:
        return text
    raise ConfigError(
        "not a hash of a key (sha256:… or scrypt:…); `prefix-gateway keys hash` makes one from a key"
    )


def is_slow(stored: str) -> bool:
    return stored.startswith("scrypt:")


def matches(secret: str, stored: str) -> bool:
    """Whether `secret` is the key behind a hash that `checked_hash` let through. Takes the same time
    whatever part of it is wrong."""
    if not is_slow(stored):
        return hmac.compare_digest(sha256_of(secret), stored)
    _, log_n, r, p, salt, wanted = stored.split(":")
    digest = _scrypt(secret, bytes.fromhex(salt), int(log_n), int(r), int(p))
    return hmac.compare_digest(digest.hex(), wanted)


def _scrypt(secret: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    n = 1 << log_n
    return hashlib.scrypt(
        secret.encode("utf-8", "surrogateescape"),
        salt=salt,
        n=n,
        r=r,
        p=p,
        maxmem=2 * 128 * n * r + (1 << 20),
        dklen=32,
    )
