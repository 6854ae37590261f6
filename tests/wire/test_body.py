import gc
import json
import tracemalloc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory import traced_memory

from ctxpipe.wire.body import MAX_DEPTH, Body, TooDeep, read_body

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
OTHERS = st.dictionaries(st.text().filter(lambda name: name != "messages"), JSON, max_size=4)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """An object with a list of messages at any place among its other values."""
    members = [*draw(OTHERS).items(), ("messages", draw(st.lists(JSON, max_size=6)))]
    return dict(draw(st.permutations(members)))


@st.composite
def encodings(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """A body, and one of the ways to write it as JSON."""
    value = draw(bodies())
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 0, 2])),
    )
    return value, text.encode("utf-8", "surrogatepass")


def parsed(raw: bytes, *known: Body) -> Body:
    body = read_body(raw, "messages", *known)
    assert body is not None
    return body


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(encodings().filter(lambda given: is_utf8(given[1])))
def test_a_body_is_read_as_a_json_reader_reads_it(given):
    value, raw = given
    body = parsed(raw)
    assert {**body.values, "messages": body.items} == value
    for item, span in zip(body.items, body.spans, strict=True):
        assert json.loads(raw[span.start : span.stop]) == item
    for name, span in body.places.items():
        assert json.loads(raw[span.start : span.stop]) == value[name]


@pytest.mark.parametrize("number", ["1", "-12", "1.5", "1e5", "1.5E+30", "2e-7"])
def test_a_number_is_whole_whatever_follows_it(number):
    body = parsed(f'{{"messages":[{number},{number} ],"top_p":{number}}}'.encode())
    assert body.items == [float(number)] * 2
    assert body.values == {"top_p": float(number)}


def test_a_large_body_takes_little_more_memory_than_its_items():
    text = "x" * 20_000 + "→"  # which Python holds in two bytes a character
    raw = json.dumps({"messages": [text] * 200}, ensure_ascii=False).encode()
    with traced_memory():
        body = parsed(raw)
        held, peak = tracemalloc.get_traced_memory()
    assert len(body.items) == 200
    assert peak < held + 1_000_000


def test_to_write_a_large_body_takes_its_size_in_memory_once():
    body = parsed(json.dumps({"messages": ["x" * 20_000] * 200, "top_k": 1}).encode())
    with traced_memory():
        written = body.write(body.items[1:], {"top_k": 2})
        _, peak = tracemalloc.get_traced_memory()
    assert peak < 1.1 * len(written)


@given(encodings(), st.lists(JSON, max_size=3), st.integers(0, 6), OTHERS)
def test_a_body_read_on_from_the_last_one_is_the_same_as_one_read_anew(given, new, cut, others):
    value, raw = given
    if not is_utf8(raw):
        return
    last = parsed(raw)
    changed = {name: value[name] for name in value}
    changed["messages"] = [*value["messages"][:cut], *new]
    changed |= {name: other for name, other in others.items() if name in value}
    later = json.dumps(changed, ensure_ascii=True).encode()
    for first in (last, parsed(json.dumps(value, ensure_ascii=True).encode())):
        body, fresh = parsed(later, first), parsed(later)
        assert body.items == fresh.items
        assert body.values == fresh.values
        assert body.spans == fresh.spans
        assert body.places == fresh.places


def test_an_item_with_the_same_bytes_is_the_same_object():
    last = parsed(b'{"messages": [{"a": 1}, {"b": "2"}], "system": "x"}')
    body = parsed(b'{"messages": [{"a": 1}, {"b": "2"}, {"c": 3}], "system": "y"}', last)
    assert body.items[0] is last.items[0]
    assert body.items[1] is last.items[1]
    assert body.items[2] == {"c": 3}
    assert body.values == {"system": "y"}


def test_a_value_with_the_same_bytes_is_the_same_object_wherever_it_is():
    last = parsed(b'{"tools": [{"name": "a"}], "messages": [{"a": 1}], "system": ["x"]}')
    later = parsed(
        b'{"messages": [{"b": 2}], "system":\t["x"], "top_k": 1,"tools":  [{"name": "a"}]}', last
    )
    assert later.items == [{"b": 2}]
    assert later.values == {"system": ["x"], "top_k": 1, "tools": [{"name": "a"}]}
    assert later.values["tools"] is last.values["tools"]
    assert later.values["system"] is last.values["system"]


def test_a_value_with_other_bytes_is_another_object():
    last = parsed(b'{"messages": [], "tools": [{"name": "a"}]}')
    later = parsed(b'{"messages": [], "tools": [{"name":"a"}]}', last)
    assert later.values == last.values
    assert later.values["tools"] is not last.values["tools"]


def test_a_body_does_not_keep_the_one_before_it():
    last = parsed(b'{"messages": [{"a": 1}], "tools": ["x"]}')
    seen = weakref.ref(last)
    later = parsed(b'{"messages": [{"a": 1}, {"b": 2}], "tools": ["x"]}', last)
    later.continue_writing(last)
    del last
    gc.collect()
    assert seen() is None
    assert later.values == {"tools": ["x"]}


def test_a_number_that_goes_on_is_another_number():
    last = parsed(b'{"messages": [1, 2], "top_k": 4}')
    later = parsed(b'{"messages": [1, 23], "top_k": 45}', last)
    assert later.items == [1, 23]
    assert later.values == {"top_k": 45}


def test_an_item_that_is_sent_again_keeps_the_bytes_that_were_written():
    last = parsed(b'{"messages": [{"a": 1}]}')
    placeholder = {"text": "[file x]"}
    last.write([placeholder], {})
    later = parsed(b'{"messages": [{"a": 1}, {"b": 2}]}', last)
    later.continue_writing(last)
    before = later.encoded_items[id(placeholder)][1]
    assert later.write([placeholder, {"c": 3}], {}) == (
        b'{"messages": [{"text":"[file x]"},{"c":3}]}'
    )
    assert later.encoded_items[id(placeholder)][1] is before


def test_the_size_of_a_body_counts_the_bytes_of_items_that_were_written():
    body = parsed(b'{"messages": [{"a": 1}]}')
    assert body.size == len(body.raw)
    body.write([{"text": "x" * 100}], {})
    assert body.size == len(body.raw) + len('{"text":""}') + 100
    body.write(body.items, {})
    assert body.size == len(body.raw)


def test_what_nobody_changes_keeps_its_bytes():
    raw = b'{ "model":"m",\t"messages" : [ {"a":  "\\u00e9"} , {"b":1e3} ],"top_p":0.50 }'
    body = parsed(raw)
    written = body.write([body.items[0], {"text": "é"}], {})
    assert written == (
        b'{ "model":"m",\t"messages" : [{"a":  "\\u00e9"},{"text":"\xc3\xa9"}],"top_p":0.50 }'
    )


def test_a_value_is_replaced_where_it_is_and_a_new_one_comes_last():
    body = parsed(b'{"thinking": {"type": "adaptive"}, "messages": [], "z": 1}')
    written = body.write(body.items, {"thinking": {"a": 1}, "new": "2"})
    assert written == b'{"thinking": {"a":1}, "messages": [], "z": 1,"new":"2"}'


@given(encodings(), st.lists(JSON, max_size=3))
def test_what_is_written_reads_as_what_was_meant(given, new):
    value, raw = given
    if not is_utf8(raw):
        return
    body = parsed(raw)
    items = [*body.items[1:], *new]
    assert json.loads(body.write(items, {})) == {**value, "messages": items}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"messages": [1,]}', b"nonsense", b'{"a": 1} 2', b'{"a": "\xff"}', b"{1: 2}"],
)
def test_what_is_no_json_cannot_be_read(raw):
    with pytest.raises(ValueError):
        read_body(raw, "messages")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 10_000, 100_000])
def test_what_nests_too_deep_is_refused(depth):
    raw = b'{"messages": [' + b"[" * depth + b"]" * depth + b"]}"
    with pytest.raises(TooDeep, match="deeper than 200"):
        read_body(raw, "messages")


def test_what_nests_as_deep_as_it_may_is_read():
    item = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    body = parsed(b'{"messages": [' + item + b', {"a": ' + item[1:-1] + b"}]}")
    assert [span.stop - span.start for span in body.spans] == [len(item), len(item) + 5]


def test_a_body_that_names_a_key_twice_cannot_be_read():
    with pytest.raises(ValueError, match="twice"):
        read_body(b'{"messages": [], "messages": [1]}', "messages")


@pytest.mark.parametrize("raw", [b"[]", b"7", b"{}", b'{"model": "m"}', b'{"messages": "text"}'])
def test_what_has_no_such_list_is_none_of_ours(raw):
    assert read_body(raw, "messages") is None
