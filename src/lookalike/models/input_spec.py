"""The input of a backbone: how the pixels of a picture become the numbers it was trained on.

    numbers = (pixels - mean) / std,    pixels: RGB in 0..1, or BGR in 0..255 for networks from Caffe

For evaluation the shorter side is resized to ``resize``, then the middle ``size`` x ``size`` is cut out. With
``cells`` the whole picture is seen instead (see ``lookalike.data.cropping``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any, Literal

from lookalike._util.checks import check_count
from lookalike._util.settings import check_settings, setting

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LARGEST = 4096  # pixels; a picture takes 200 MB as numbers


@dataclass(frozen=True)
class InputSpec:
    """How pictures are prepared for a backbone.

    Args:
        size: Side of the square input, in pixels.
        mean: One number for each channel, in the order and range of the pixels.
        std: Standard deviation of each channel.
        bgr255: Pixels are BGR in 0..255 instead of RGB in 0..1.
        interpolation: How pictures are resized, "bilinear" or "bicubic".
        resize: Shorter side before the centre crop; None: ``size`` * 256 / 227.
        cells: Local features along a side of the square input; the whole picture is then seen, in squares that are
            joined cell by cell. None: only the centre crop is seen.

    Examples:
        >>> InputSpec(size=227).resize_to
        256
        >>> InputSpec.from_dict(InputSpec(bgr255=True, mean=(104, 117, 128), std=(1, 1, 1)).to_dict()).mean
        (104.0, 117.0, 128.0)
    """

    size: int = setting(224, "side of the square input, in pixels", least=1, up_to=LARGEST)
    mean: tuple[float, float, float] = setting(IMAGENET_MEAN, "subtracted from each channel", above=-inf)
    std: tuple[float, float, float] = setting(IMAGENET_STD, "each channel is divided by it", above=0)
    bgr255: bool = setting(False, "pixels are BGR in 0..255, not RGB in 0..1")
    interpolation: Literal["bilinear", "bicubic"] = setting("bilinear", "how pictures are resized")
    resize: int | None = setting(None, "shorter side before the centre crop; null: size * 256 / 227")
    cells: int | None = setting(
        None, "local features along a side, to see all of a picture; null: centre crop", least=1
    )

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise TypeError(f"{name} must be three numbers, got {values!r}")
            object.__setattr__(self, name, tuple(values))
        check_settings(self)
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        if self.resize is not None:
            check_count("resize", self.resize, least=self.size)
            if self.resize > 2 * LARGEST:
                raise ValueError(f"resize must be at most {2 * LARGEST}, got {self.resize}")

    @property
    def resize_to(self) -> int:
        """The shorter side before the centre crop."""
        return round(self.size * 256 / 227) if self.resize is None else self.resize

    @property
    def sees_whole(self) -> bool:
        """Whether the whole picture is seen, not only the centre crop."""
        return bool(self.cells)

    def resized(self, size: int) -> "InputSpec":
        """The same for another ``size``, with ``resize`` in proportion.

        Examples:
            >>> InputSpec(size=224, resize=256).resized(112).resize_to
            128
        """
        return replace(self, size=size, resize=round(size * self.resize_to / self.size))

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        values = asdict(self) | {"mean": list(self.mean), "std": list(self.std)}
        if self.cells is None:  # fingerprints of earlier models stay as they are
            del values["cells"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "InputSpec":
        """Build the spec from the result of ``to_dict``.

        Raises:
            TypeError: If a value has the wrong type.
            ValueError: If a name is unknown or a value is out of bounds.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"an input spec must be a mapping, got {type(values).__name__}")
        unknown = sorted(set(values).difference(field.name for field in fields(cls)))
        if unknown:
            raise ValueError(f"an input spec has no {', '.join(unknown)}")
        return cls(**values)
