from __future__ import annotations

import pytest

from gateway.upstream.redact import Redactor

NAMES = ("kv_transfer_params", "ec_transfer_params", "disaggregated_params")


@pytest.mark.parametrize(
    ("body", "concerned"),
    [
        (b'{"a":1}', False),
        (b'{"kv_transfer_params":null,"ec_transfer_params":null}', False),
        (b'{"kv_transfer_params":{"x":1}}', True),
        (b'{"kv_transfer_params":null,"choices":[{"ec_transfer_params":1}]}', True),
        (rb'{"text":"say \"kv_transfer_params\": 3"}', False),
        (b'{"disaggregated_params":[]}', True),
        (rb'{"kv\u005Ftransfer_params":1}', True),
        (rb'{"text":"\u00e9 \u005f"}', False),
        (b'{"kv_transfer_params": null, "ec_transfer_params" :\r\n null}', False),
        (rb'{"kv\u005Ftransfer_params" : null, "text":"\u00e9"}', False),
        (b'{"text":"kv_transfer_params","of":["ec_transfer_params"]}', False),
        (b'{"kv_transfer_params": \t{"x":1}}', True),
        (b'{"kv_transfer_params":{"x":1}, "kv_transfer_params": null}', True),
        (b'{"kv_transfer_params": null, "kv_transfer_params": {"x":1}}', True),
        (rb'{"kv_transfer_params":null,"text":"\u00e9","kv\u005ftransfer_params": 0}', True),
    ],
)
def test_only_fields_with_something_in_them_concern(body: bytes, concerned: bool) -> None:
    assert Redactor(NAMES).concerns(body) is concerned


def test_fields_leave_at_any_depth_and_other_bytes_stay() -> None:
    body = b'{"a": 1.500, "kv_transfer_params": {"h": 1}, "c": [{"ec_transfer_params": 2, "d": "\\u00e9"}]}'
    assert Redactor(NAMES).redact(body) == b'{"a":1.500,"c":[{"d":"\\u00e9"}]}'


def test_escaped_names_leave_at_any_depth() -> None:
    body = rb'{"a":[{"e\u0063_transfer_params":2,"d":1.50}],"\u006bv_transfer_params":null}'
    assert Redactor(NAMES).redact(body) == b'{"a":[{"d":1.50}],"kv_transfer_params":null}'


def test_fields_leave_what_only_pythons_parser_takes() -> None:
    body = b'{"a": [{"logprob": NaN, "kv_transfer_params": {"h": 1}}], "ec_transfer_params": null}'
    assert Redactor(NAMES).redact(body) == b'{"a":[{"logprob":NaN}],"ec_transfer_params":null}'


def test_what_is_not_json_stays() -> None:
    body = b'{"kv_transfer_params": 1'
    assert Redactor(NAMES).redact(body) == body


def test_without_names_nothing_concerns() -> None:
    assert not Redactor(()).concerns(b'{"kv_transfer_params":1}')


def test_deep_json_does_not_break_it() -> None:
    body = b"[" * 5000 + b'{"kv_transfer_params":1}' + b"]" * 5000
    assert Redactor(NAMES).redact(body) == body
