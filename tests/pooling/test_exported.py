"""The layer under torch.export gives what it gives in eager mode."""

import pytest
import torch

from lookalike.pooling import GeneralizedSumPool


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("sharpness", [5.0, 1e4])
def test_export_with_any_batch_size(details: bool, sharpness: float) -> None:
    torch.manual_seed(0)
    pool = GeneralizedSumPool(8, 5, sharpness=sharpness).eval()
    exported = torch.export.export(
        pool,
        (torch.randn(4, 8, 3, 3),),
        {"details": details},
        dynamic_shapes={"features": {0: torch.export.Dim.AUTO}, "details": None},
    ).module()
    for bags in (2, 7):
        maps = torch.randn(bags, 8, 3, 3)
        torch.testing.assert_close(exported(maps, details=details), pool(maps, details=details), atol=1e-6, rtol=1e-5)


def test_export_with_a_mask() -> None:
    torch.manual_seed(0)
    pool = GeneralizedSumPool(8, 5).eval()
    tokens, mask = torch.randn(4, 6, 8), torch.rand(4, 6) > 0.3
    mask[:, 0] = True
    exported = torch.export.export(pool, (tokens, mask)).module()
    torch.testing.assert_close(exported(tokens, mask), pool(tokens, mask), atol=1e-6, rtol=1e-5)
