"""Lines of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import places, snapshot, source

TEXT = """# comment with [brackets] = and "quotes
top = 1
"a.b"."c\\"d" = "# no comment"

[gateway] # the gateway
listen = [ # addresses
  "127.0.0.1:8080", # "one"
  '[::1]:8080',
]
admission.queue_size = 3
text = \"\"\"
[not.a.table]
x = 1 \\\"""
\"\"\"
literal = '''
y = [
'''

[[engine]]
name = "a"
vllm = { max_num_seqs = 1, deep = { list = [1,
  { x = 2 }] } }
[engine.env]
KEY = "value"

[[ engine ]]
when = 1979-05-27T07:32:00Z
[engine.vllm.compilation_config]
mode = 3
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("a.b", 'c"d'), 3),
        (("gateway",), 5),
        (("gateway", "listen"), 6),
        (("gateway", "listen", 0), 7),
        (("gateway", "listen", 1), 8),
        (("gateway", "admission", "queue_size"), 10),
        (("gateway", "text"), 11),
        (("gateway", "literal"), 15),
        (("engine", 0), 19),
        (("engine", 0, "name"), 20),
        (("engine", 0, "vllm", "max_num_seqs"), 21),
        (("engine", 0, "vllm", "deep", "list", 1, "x"), 22),
        (("engine", 0, "env", "KEY"), 24),
        (("engine", 1), 26),
        (("engine", 1, "when"), 27),
        (("engine", 1, "vllm", "compilation_config", "mode"), 29),
    ],
)
def test_the_line_of_a_key(path: places.Path, line: int) -> None:
    assert places.lines(TEXT)[path] == line


def test_what_looks_like_a_key_inside_text_is_none() -> None:
    assert ("not",) not in places.lines(TEXT)
    assert ("gateway", "x") not in places.lines(TEXT)
    assert ("gateway", "y") not in places.lines(TEXT)


@given(st.text(max_size=200))
def test_no_text_makes_it_fail(text: str) -> None:
    assert all(line >= 1 for line in places.lines(text).values())


def paths(value: object, at: places.Path = ()) -> set[places.Path]:
    found = {at} if at else set()
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found |= paths(inner, (*at, key))
    return found


KEYS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_reads_back_and_every_key_has_a_line(value: dict[str, object]) -> None:
    text = snapshot.document(value)
    assert source.tomllib.loads(text) == value
    assert paths(value) <= set(places.lines(text))
