"""Checks whether a PNG holds all pixels that its header announces.

Pillow reads a compressed stream that ends too early without an error and leaves the missing rows black. A file of 84
bytes can therefore stand for 50 million pixels.
"""

import struct
import zlib
from collections.abc import Iterator

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
WHOLE = ((0, 0, 1, 1),)
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
HEADER = slice(16, 29)
BLOCK = 1 << 20  # bytes decompressed at a time


def is_complete(data: bytes) -> bool:
    """Count the decompressed bytes of the pixels, block by block.

    Args:
        data: A PNG file.

    Returns:
        Whether there are as many as the header announces.
    """
    missing = _announced_bytes(data)
    stream = zlib.decompressobj()
    try:
        for chunk in _pixel_chunks(data):
            while chunk and missing > 0:
                missing -= len(stream.decompress(chunk, BLOCK))
                chunk = stream.unconsumed_tail
        while missing > 0 and not stream.eof:
            block = stream.decompress(stream.unconsumed_tail, BLOCK)
            if not block:
                break
            missing -= len(block)
    except zlib.error:
        return False
    return missing <= 0


def _announced_bytes(data: bytes) -> int:
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", data[HEADER])
    bits_per_pixel = depth * CHANNELS[colour]
    total = 0
    for left, top, x_step, y_step in ADAM7 if interlaced else WHOLE:
        columns = len(range(left, width, x_step))
        rows = len(range(top, height, y_step))
        if columns:
            total += rows * (1 + (columns * bits_per_pixel + 7) // 8)  # a row begins with the byte of its filter
    return total


def _pixel_chunks(data: bytes) -> Iterator[bytes]:
    position = 8
    while position + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        if kind == b"IDAT":
            yield data[position + 8 : position + 8 + length]
        position += 12 + length
