"""The body that a new body continues, among those of all conversations."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.wire.body import Body, common_bytes, read_body
from ctxpipe.wire.body_index import BodyIndex, nearest

RAWS = st.lists(st.text("ab", max_size=6).map(str.encode), max_size=12)


def body_of(raw: bytes, key: str = "messages") -> Body:
    return Body(raw, key)


@given(RAWS, st.text("ab", max_size=6).map(str.encode))
def test_no_other_body_has_more_bytes_in_common_than_one_of_the_nearest(raws, raw):
    index = BodyIndex()
    for other in raws:
        index.add(body_of(other))
    bodies = index.bodies("messages")
    found = nearest(bodies, raw)
    assert len(found) <= 2
    most = max((common_bytes(body.raw, raw) for body in bodies), default=0)
    assert max((common_bytes(body.raw, raw) for body in found), default=0) == most


@given(RAWS, st.data())
def test_a_body_that_was_removed_is_found_no_more_and_the_others_are(raws, data):
    index = BodyIndex()
    bodies = [body_of(raw) for raw in raws]
    for body in bodies:
        index.add(body)
    for body in data.draw(st.permutations(bodies)):
        index.remove(body)
        bodies = [one for one in bodies if one is not body]
        left = index.bodies("messages")
        assert {id(one) for one in left} == {id(one) for one in bodies}
        assert [one.raw for one in left] == sorted(one.raw for one in bodies)


def test_bodies_of_another_api_are_not_found():
    index = BodyIndex()
    index.add(body_of(b'{"messages": []}'))
    index.add(body_of(b'{"input": []}', "input"))
    assert [body.key for body in index.bodies("input")] == ["input"]
    assert index.bodies("contents") == []


def test_of_many_conversations_with_one_head_the_right_one_is_continued():
    def raw(number: int, count: int) -> bytes:
        items = [{"role": "user", "content": f"task {number}, part {n}"} for n in range(count)]
        return json.dumps({"system": "x" * 500, "messages": items, "top_k": number}).encode()

    index = BodyIndex()
    bodies = []
    for number in range(50):
        body = read_body(raw(number, 3), "messages")
        assert body is not None
        bodies.append(body)
        index.add(body)
    for number, earlier in enumerate(bodies):
        new = raw(number, 5)
        body = read_body(new, "messages", *nearest(index.bodies("messages"), new))
        assert body is not None
        assert [one is other for one, other in zip(body.items, earlier.items, strict=False)] == [
            True,
            True,
            True,
        ]
