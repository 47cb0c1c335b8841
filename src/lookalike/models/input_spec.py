"""What a backbone wants: how the pixels of a picture become the numbers it was trained on.

    numbers = (pixels - mean) / std,    pixels: RGB in 0..1, or BGR in 0..255 for networks that came from Caffe

For evaluation the shorter side is resized to ``resize``, then the middle ``size`` x ``size`` is cut out.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from lookalike._util.checks import check_count, check_range

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class InputSpec:
    """How pictures are brought to a backbone.

    >>> InputSpec(size=227).resize_to
    256
    >>> InputSpec.from_dict(InputSpec(bgr255=True, mean=(104, 117, 128), std=(1, 1, 1)).to_dict()).mean
    (104.0, 117.0, 128.0)
    """

    size: int = 224  # side of the square that goes in, in pixels
    mean: tuple[float, ...] = IMAGENET_MEAN  # one for each channel, in the order and range of the pixels
    std: tuple[float, ...] = IMAGENET_STD
    bgr255: bool = False  # pixels are BGR in 0..255, not RGB in 0..1
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    resize: int | None = None  # shorter side before the centre crop; None: 256 for every 227 of the size

    def __post_init__(self) -> None:
        check_count("size", self.size)
        for name in ("mean", "std"):
            values = getattr(self, name)
            if isinstance(values, str) or not hasattr(values, "__iter__"):
                raise TypeError(f"{name} must be three numbers, got {values!r}")
            values = tuple(values)
            if len(values) != 3:
                raise ValueError(f"{name} must be three numbers, one for each channel, got {values}")
            for value in values:
                check_range(f"every {name}", value, 0 if name == "std" else -float("inf"), None)
            object.__setattr__(self, name, tuple(float(value) for value in values))
        if not isinstance(self.bgr255, bool):
            raise TypeError(f"bgr255 must be True or False, got {self.bgr255!r}")
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f"interpolation must be 'bilinear' or 'bicubic', got {self.interpolation!r}")
        if self.resize is not None:
            check_count("resize", self.resize, least=self.size)

    @property
    def resize_to(self) -> int:
        """The shorter side before the centre crop."""
        return round(self.size * 256 / 227) if self.resize is None else self.resize

    def resized(self, size: int) -> "InputSpec":
        """The same for another side, with the centre crop in proportion.

        >>> InputSpec(size=224, resize=256).resized(112).resize_to
        128
        """
        return replace(self, size=size, resize=round(size * self.resize_to / self.size))

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "InputSpec":
        """The reverse of ``to_dict``; unknown names are an error."""
        if not isinstance(values, Mapping):
            raise TypeError(f"an input spec must be a mapping, got {type(values).__name__}")
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"an input spec has no {', '.join(unknown)}")
        return cls(**values)
