"""The HTTP server: ``create_app(idx, model)`` builds it, ``lookalike serve IDX`` runs it.

Follow one uploaded picture:

1. ``middleware`` checks host, origin and size;
2. ``access.AccessControl`` checks key and quota, then ``uploads.read_form`` reads the form;
3. ``decoding.Decoder`` hands the bytes to a process, where ``lookalike.data.safe_decode`` decodes and crops them;
4. ``context.Context.embed`` queues the pixels in the ``batching.Batcher``;
5. ``collection.Collection.search`` asks the index;
6. ``schemas`` shapes the JSON answer; ``errors`` shapes every failure.
"""

from lookalike.server.app import create_app
from lookalike.server.keys import Keys
from lookalike.server.limits import Limits
from lookalike.server.quotas import Quota, SharedBuckets

__all__ = ["Keys", "Limits", "Quota", "SharedBuckets", "create_app"]
