"""The field ``crop`` of a form. ``decoding`` has the processes that decode pictures."""

from lookalike.data.cropping import Region
from lookalike.server.errors import invalid
from lookalike.server.numbers import decimal

SMALLEST_CROP = 1e-4  # fraction of a side
ROUNDING = 1.001  # fractions with few digits may add up to slightly more than 1


class Crop(Region):
    """A region of a picture, in fractions of its width and height."""

    @classmethod
    def read(cls, text: str | None) -> "Crop":
        """Parse the field ``crop`` of a form.

        Args:
            text: ``left,top,width,height``; empty or None means the whole picture.

        Returns:
            The region.

        Raises:
            ApiError: 422 if it is malformed or outside of the picture.

        Examples:
            >>> Crop.read("0.25, 0, 0.5, 1")
            Crop(left=0.25, top=0.0, width=0.5, height=1.0)
        """
        if text is None or not text.strip():
            return cls()
        expected = "crop must be left,top,width,height as fractions of the picture, for example 0.25,0,0.5,1; "
        expected += "it must lie inside the picture"
        try:
            crop = cls(*map(decimal, text.split(",")))
        except (TypeError, ValueError):
            raise invalid(expected) from None
        starts_inside = crop.left >= 0 and crop.top >= 0
        ends_inside = crop.left + crop.width <= ROUNDING and crop.top + crop.height <= ROUNDING
        large_enough = crop.width >= SMALLEST_CROP and crop.height >= SMALLEST_CROP
        if not (starts_inside and ends_inside and large_enough):  # all are False for NaN
            raise invalid(expected)
        return crop
