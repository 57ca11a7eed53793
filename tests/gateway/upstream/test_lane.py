"""What goes on to the client as it came, and what does not."""

from __future__ import annotations

import pytest

from gateway.upstream.lane import Lane

BEFORE = b'data: {"choices":[{"delta":{"content":"'
BEHIND = b'"}}],"usage":null}\n\n'


def event(text: bytes) -> bytes:
    return BEFORE + text + BEHIND


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Written(list[bytes]):
    """What went to the client; the time is what it is set to."""

    now = 0.0

    def lane(self) -> Lane:
        lane = Lane(self.append, lambda: self.now)
        lane.open(BEFORE, BEHIND, self.now)
        return lane


# 59 bytes without a text: sizes of two digits and of three, in letters and in digits
@pytest.mark.parametrize(
    "text", [b"", b"a", b" token", "Grüße 🎈".encode(), b"data: [DONE]", b"a\\nb\\\\c\\u00e9", b"x" * 250]
)
def test_an_event_that_differs_in_its_text_alone_goes_on(text: bytes) -> None:
    written = Written()
    assert written.lane().takes(framed(event(text)))
    assert written == [framed(event(text))]


def test_it_is_framed_as_we_would_for_every_length() -> None:
    written = Written()
    lane = written.lane()
    taken = [n for n in range(1200) if lane.takes(framed(event(b"x" * n)))]
    # three digits, two line ends and 59 bytes around the text leave 957 of 1,023 for it
    assert len(event(b"")) == 59
    assert taken == list(range(958))


PLAIN = framed(event(b"abc"))


@pytest.mark.parametrize(
    "read",
    [
        b"",
        b"0\r\n\r\n",
        PLAIN[:-1],
        PLAIN[1:],
        PLAIN + b"0\r\n\r\n",
        PLAIN + PLAIN,
        b"0" + PLAIN,  # sizes that say the same in other bytes
        PLAIN.replace(b"3e\r\n", b"3E\r\n"),
        PLAIN.replace(b"3e\r\n", b"3e;a=b\r\n"),
        PLAIN.replace(b"3e\r\n", b"3e \r\n"),
        PLAIN.replace(b"3e\r\n", b"3e\n"),
        PLAIN.replace(b"3e\r\n", b"3d\r\n"),  # and such as say another
        PLAIN.replace(b"3e\r\n", b"3f\r\n"),
        PLAIN.replace(b"3e\r\n", b"+3e\r\n"),
        PLAIN[:-2] + b"\n\n",
        framed(event(b'a"b')),
        framed(event(b'a\\"b')),
        framed(event(b"a\\")),
        framed(event(b"\\\\")),
        framed(event(b"a\nb")),
        framed(event(b"a\rb")),
        framed(event(b'"}}]}\n\n' + BEFORE)),
        framed(event(b"").replace(b"null", b'{"prompt_tokens":1}')),
        framed(event(b"").replace(b"delta", b"other")),
        framed(b"data: [DONE]\n\n"),
        framed(BEFORE + BEHIND[1:]),  # the end of the one is not the beginning of the other
        framed(BEFORE[:-1] + BEHIND),
    ],
)
def test_anything_else_is_left_alone(read: bytes) -> None:
    written = Written()
    lane = written.lane()
    assert PLAIN.startswith(b"3e\r\n")
    assert not lane.takes(read)
    assert (written, lane.pieces, lane.last, lane.longest_gap) == ([], 0, 0.0, 0.0)


def test_what_it_notes() -> None:
    written = Written()
    lane = written.lane()
    for written.now in (1.0, 4.0, 5.5):
        assert lane.takes(PLAIN)
    written.now = 7.0
    assert not lane.takes(b"0\r\n\r\n")
    assert (lane.pieces, lane.longest_gap, lane.last, lane.silent_s()) == (3, 3.0, 5.5, 1.5)
