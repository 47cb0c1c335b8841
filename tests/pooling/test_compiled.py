"""The layer under torch.compile, in one graph, gives what it gives in eager mode."""

import shutil

import pytest
import torch

from lookalike.pooling import GeneralizedSumPool

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")


@pytest.mark.parametrize(
    ("backend", "settings", "masked"),
    [
        ("aot_eager", {}, False),
        ("aot_eager", {"learn_keep": True, "learn_sharpness": True}, False),
        pytest.param("inductor", {"sharpness": 1e3, "background": True}, True, marks=needs_compiler),
    ],
)
def test_compile_in_one_graph(backend: str, settings: dict, masked: bool) -> None:  # type: ignore[type-arg]
    torch._dynamo.reset()
    torch.manual_seed(0)
    pool = GeneralizedSumPool(8, 5, **settings)
    compiled = torch.compile(pool, fullgraph=True, backend=backend)
    features = torch.randn(3, 9, 8, requires_grad=True)
    mask = torch.rand(3, 9) > 0.3 if masked else None
    inputs = [features, *pool.parameters()]
    for details in (False, True) if backend == "aot_eager" else (True,):  # inductor compiles for half a minute
        expected, got = (model(features, mask, details=details) for model in (pool, compiled))
        expected, got = (parts if details else (parts,) for parts in (expected, got))
        torch.testing.assert_close(tuple(got), tuple(expected), atol=1e-5, rtol=1e-4)
        gradients = (torch.autograd.grad(sum(part.sin().sum() for part in parts), inputs) for parts in (got, expected))
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)


def test_compiled_through_the_warm_up() -> None:
    """The start from data breaks the graph, and happens all the same."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    pools = [GeneralizedSumPool(8, 4, init="k-centre", memory=20) for _ in range(2)]
    pools[1].load_state_dict(pools[0].state_dict())
    compiled = torch.compile(pools[1], backend="eager")
    for _ in range(4):
        tokens = torch.randn(8, 5, 8)
        torch.testing.assert_close(compiled(tokens), pools[0](tokens))
    assert pools[1].ready
    assert torch.equal(pools[0].prototypes, pools[1].prototypes)
