"""Shards: every file is in one, equal contents in the same."""

from hypothesis import given
from hypothesis import strategies as st

from lookalike.sharded.coordinator import plan_shards
from lookalike.sharded.worker import File


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(1, 9))
def test_shards_are_a_partition_that_keeps_equal_keys_together(keys: list[int], size: int) -> None:
    files = [File(number, str(number), key) for number, key in enumerate(keys)]
    shards = plan_shards(files, dict(enumerate(keys)), size)
    assert sorted(file for shard in shards for file in shard) == files
    shard_of = {}
    for number, shard in enumerate(shards):
        assert shard
        assert len(shard) <= size or len({file.size for file in shard}) == 1
        for file in shard:
            assert shard_of.setdefault(file.size, number) == number
