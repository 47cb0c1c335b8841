import os
import re

from hypothesis import given
from hypothesis import strategies as st

from lookalike.data.names import as_text, from_text


@given(st.text(st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("\\xuE9"), max_size=12))
def test_every_name_can_be_written_and_comes_back(name: str) -> None:
    text = as_text(name)
    assert text.encode().decode() == text
    assert from_text(text) == name


@given(st.binary(max_size=12).filter(lambda name: b"\0" not in name))
def test_bytes_are_written_as_their_numbers(name: bytes) -> None:
    text = as_text(os.fsdecode(name)).encode()
    back = re.sub(rb"\\\\|\\x([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]) if found[1] else b"\\", text)
    assert back == name


def test_ordinary_names_stay_as_they_are() -> None:
    for name in ("a/b c.jpg", "kuş.png", "日本.png", "x'y\".png", "new\nline.png"):
        assert as_text(name) == from_text(name) == name
