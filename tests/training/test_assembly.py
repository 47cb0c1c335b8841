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


def test_the_start_is_measured_by_what_is_projected_to() -> None:
    """Eight prototypes of 16-D make 128-D: 16 principal directions are enough."""

    def directions(dim: int, pooling: str, **settings: int) -> int:
        made = Settings(
            backbone="resnet20", freeze_backbone=False, start="pca", dim=dim, pooling=pooling, pooling_settings=settings
        )
        projection = create_embedder(made).head.projection
        assert projection is not None
        return len(projection.weight)

    assert directions(128, "netvlad", num_prototypes=8) == 16
    assert directions(64, "gsp") == 64
    with pytest.raises(ValueError, match="resnet20 has 64 principal directions, which cannot start 128"):
        directions(128, "gsp")
