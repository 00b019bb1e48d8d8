"""Events: read-only values over stored bytes, and the five answers of a payload."""

import copy
import json
import pickle

import pytest

from convlog_sqlite import (
    Corrupt,
    Erased,
    Event,
    Live,
    Locked,
    Lost,
    PayloadCorrupt,
    PayloadErased,
    PayloadLocked,
    PayloadLost,
    PayloadUnreadable,
)
from convlog_sqlite.canonical import ENVELOPE_KEYS, PAYLOAD_KEYS

EVENT_ID = "019b7d3a-5c2e-7abc-8def-0123456789ab"
ENVELOPE = (
    b'{"v":1,"id":"019b7d3a-5c2e-7abc-8def-0123456789ab","seq":3,"ts":"2026-01-02T03:04:05.000000Z",'
    b'"session":"s","agent":"a","type":"message","to":["b"]}'
)
ERASED = Erased("019b7d3a-5c2f-7abc-8def-0123456789ac", "2026-01-02T03:04:06.000000Z", "retention")
UNREADABLE = {
    "erased": (ERASED, PayloadErased),
    "locked": (Locked(), PayloadLocked),
    "lost": (Lost(), PayloadLost),
    "corrupt": (Corrupt(), PayloadCorrupt),
}


def live(data=b'{"body":"hi"}'):
    """An event whose payload can be read."""
    return Event(ENVELOPE, Live(data))


def test_every_key_is_an_attribute():
    """Each envelope and payload key is an attribute; an absent one is None or empty."""
    event = live(b"{}")
    for key in (*ENVELOPE_KEYS, *PAYLOAD_KEYS):
        assert hasattr(event, key), key
    assert (event.id, event.seq, event.agent, list(event.to)) == (EVENT_ID, 3, "a", ["b"])
    assert (event.body, event.args, event.role, event.effect) == (None, None, None, None)
    assert (len(event.links), len(event.subjects), len(event.attachments)) == (0, 0, 0)
    assert event.sensitivity == "internal"


def test_a_line_is_the_stored_bytes_spliced():
    """The line is the envelope and the payload, byte for byte, with one newline at the end."""
    data = '{"body":"z\u00e9\\u0000","meta":{"b":1.0,"a":1}}'.encode()
    assert live(data).line == ENVELOPE[:-1] + b"," + data[1:] + b"\n"
    assert live(b"{}").line == ENVELOPE + b"\n"
    assert live(data).to_dict() == json.loads(live(data).line)


@pytest.mark.parametrize("answer", UNREADABLE)
def test_an_unreadable_payload_is_a_value(answer):
    """A payload that cannot be read leaves the envelope readable, its own keys absent, and says why."""
    payload, error = UNREADABLE[answer]
    event = Event(ENVELOPE, payload)
    assert (event.answer, event.agent, event.body, event.content) == (answer, "a", None, {})
    line = json.loads(event.line)
    if answer == "erased":
        said = {"by": payload.by, "at": payload.at, "reason": payload.reason}
        assert (event.redacted, event.unreadable, line["redacted"]) == (said, None, said)
        assert "unreadable" not in line
    else:
        assert (event.redacted, event.unreadable, line["unreadable"]) == (None, answer, answer)
        assert "redacted" not in line
    with pytest.raises(error) as unreadable:
        event.require_payload()
    assert isinstance(unreadable.value, PayloadUnreadable)
    assert unreadable.value.event_id == EVENT_ID


def test_the_error_of_an_erased_payload_says_by_what():
    """PayloadErased carries the redaction, its time and its reason."""
    with pytest.raises(PayloadErased) as erased:
        Event(ENVELOPE, ERASED).require_payload()
    assert (erased.value.by, erased.value.at, erased.value.why) == (ERASED.by, ERASED.at, ERASED.reason)


def test_a_live_event_has_no_reason():
    """A payload that can be read is neither redacted nor unreadable."""
    event = live()
    assert (event.answer, event.redacted, event.unreadable) == ("live", None, None)
    assert event.require_payload() == {"body": "hi"}


@pytest.mark.parametrize("name", ["body", "seq", "payload", "envelope_bytes", "colour"])
def test_an_event_is_never_changed(name):
    """No attribute can be set or deleted."""
    event = live()
    with pytest.raises(AttributeError):
        setattr(event, name, "x")
    with pytest.raises(AttributeError):
        delattr(event, name)
    assert event == live()


def test_events_are_compared_by_their_bytes():
    """Two events are equal when their bytes and answers are, and can stand in sets."""
    assert live() == live()
    assert len({live(), live()}) == 1
    assert live() != live(b'{"body":"ho"}')
    assert live() != Event(ENVELOPE, Lost())
    assert live() != "event"


@pytest.mark.parametrize("payload", [Live(b'{"body":"hi"}'), ERASED, Locked()])
def test_an_event_can_be_copied_and_sent_to_another_process(payload):
    """A copy and a pickled event are equal to the first, whether it was looked at before or not."""
    event = Event(ENVELOPE, payload)
    for _ in range(2):
        assert copy.copy(event) == event
        assert copy.deepcopy(event) == event
        assert pickle.loads(pickle.dumps(event)) == event
        assert event.agent == "a"
        assert event.body in ("hi", None)


def test_to_dict_is_the_callers_own():
    """Changing what `to_dict` gave changes nothing of the event."""
    event = live()
    event.to_dict()["to"].append("c")
    assert list(event.to) == ["b"]


def test_no_repr_shows_content():
    """What stands in a traceback or a log line names an event and shows nothing of its content."""
    event = live(b'{"body":"canary-7f3a"}')
    assert event.body == "canary-7f3a"
    assert "canary" not in repr([event, event.payload]) + f"{event} {event.payload}"
    assert "\n" not in repr(event)
