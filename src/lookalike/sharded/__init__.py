"""Large collections: embed pictures in shards, in processes of this machine or on a cluster.

    from lookalike import sharded
    from lookalike.executors import create_executor

    sharded.embed_collection("s3://bucket/birds", model, "vectors/", create_executor("local", workers=4))

A task is a shard: some hundred files. It reads them, computes the vectors and returns them to the process that asked,
which alone writes: a Parquet file for every shard, or the items of an index. What is written is the memory. A killed
command continues with the files that are missing from it.

Every content is computed once. Equal files have equal sizes, so files of one size belong to one shard, which notices
equal ones. If more files than fit into a shard have the same size, these are hashed first.
"""

from lookalike.sharded.into_index import index_collection
from lookalike.sharded.into_parquet import embed_collection

__all__ = ["embed_collection", "index_collection"]
