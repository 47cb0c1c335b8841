"""What a run is made of."""

import pytest

from lookalike.training.assembly import create_embedder
from lookalike.training.settings import Settings


def test_pictures_are_resized_and_cropped_as_asked() -> None:
    def sizes(**settings: object) -> tuple[int, int]:
        spec = create_embedder(Settings(backbone="resnet20", freeze_backbone=False, **settings)).input_spec  # type: ignore[arg-type]
        return spec.resize_to, spec.size

    assert sizes() == (32, 32)
    assert sizes(size=24) == (24, 24)
    assert sizes(size=24, resize=40) == (40, 24)
    assert sizes(size=24, resize=40, crop="none") == (40, 24)
    assert sizes(size=40, crop="none") == (40, 40)
    with pytest.raises(ValueError, match="resize must be at least 32"):
        sizes(resize=20)
