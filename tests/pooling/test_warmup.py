"""Prototypes from data: when, from what, and what a checkpoint or a second process makes of it."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from lookalike.geometry import greedy_k_centre
from lookalike.pooling import GeneralizedSumPool, OptimalTransportPool, Pooled, create


def clip(vectors: torch.Tensor) -> torch.Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1)


def make_pool(**settings) -> GeneralizedSumPool:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    return GeneralizedSumPool(8, 4, init="k-centre", memory=20, **settings)


def batches(count: int, size: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 5, 8, generator=generator) for _ in range(count)]


def test_averages_until_the_memory_is_full_then_k_centre() -> None:
    pool = make_pool()
    parameter, start = pool.prototypes, pool.prototypes.clone()
    data = batches(3)
    for batch in data[:2]:
        assert torch.equal(pool(batch), batch.mean(1))
        assert torch.equal(pool.prototypes, start)
        assert not pool.ready
    pooled = pool(data[2])
    assert pool.ready
    assert pool.prototypes is parameter
    memory = clip(torch.cat([batch.mean(1) for batch in data])[:20])
    torch.testing.assert_close(pool.prototypes.detach(), memory[greedy_k_centre(memory, 4).indices])
    assert not torch.allclose(pooled, data[2].mean(1))
    chosen = pool.prototypes.clone()
    pool(data[0])
    assert torch.equal(pool.prototypes, chosen)


def test_released_seeding_against_a_plain_loop() -> None:
    """The first m averages seed the distances and are excluded; the farthest of the others follow one by one."""
    torch.manual_seed(0)
    pool = GeneralizedSumPool(8, 4, init="k-centre-released", memory=20)
    data = batches(3)
    for batch in data:
        pool(batch)
    memory = clip(torch.cat([batch.mean(1) for batch in data])[:20]).double()
    centres, chosen = list(memory[:4]), []
    for _ in range(4):
        farthest, most = -1, -1.0
        for i in range(4, 20):
            distance = min((memory[i] - centre).norm().item() for centre in centres)
            if i not in chosen and distance > most:
                farthest, most = i, distance
        chosen.append(farthest)
        centres.append(memory[farthest])
    torch.testing.assert_close(pool.prototypes.detach(), memory[chosen].float())
    with pytest.raises(ValueError, match="memory must hold at least 8 averages for 4 prototypes, got 7"):
        GeneralizedSumPool(8, 4, init="k-centre-released", memory=7)


def test_never_in_eval_mode() -> None:
    pool = make_pool().eval()
    start = pool.prototypes.clone()
    for batch in batches(10):
        assert torch.equal(pool(batch), batch.mean(1))
        torch.testing.assert_close(pool.explain(batch).weights, torch.full((8, 5), 0.2))
    assert not pool.ready
    assert torch.equal(pool.prototypes, start)
    assert pool.warm_up is not None
    assert pool.warm_up.progress.tolist() == [0, 0]


def test_delay_counts_training_steps() -> None:
    pool = make_pool(delay=2)
    for index, batch in enumerate(batches(5)):
        pool(batch)
        assert pool.ready == (index == 4)


@pytest.mark.parametrize("stop", range(6))
def test_state_dict_round_trip_at_every_stage(stop: int, tmp_path: Path) -> None:
    data = batches(6)
    straight = make_pool(delay=1)
    resumed = make_pool(delay=1)
    for index, batch in enumerate(data):
        straight(batch)
        if index == stop:
            torch.save(resumed.state_dict(), tmp_path / "state")
            torch.manual_seed(5)
            resumed = GeneralizedSumPool(8, 4, init="k-centre", memory=20, delay=1)
            resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        resumed(batch)
    assert resumed.ready
    assert torch.equal(resumed.prototypes, straight.prototypes)
    assert torch.equal(resumed.eval()(data[0]), straight.eval()(data[0]))


def test_backward_after_the_prototypes_were_set() -> None:
    """Two views of a batch, one backward pass: the second forward sets the prototypes in place."""
    pool = make_pool()
    first, second, third = (batch.requires_grad_() for batch in batches(3))
    vectors = pool(first), pool(second, details=True).attributes, pool(third)
    assert pool.ready
    sum(vector.square().sum() for vector in vectors).backward()
    assert pool.prototypes.grad is not None
    assert pool.prototypes.grad.isfinite().all()


def test_optimiser_keeps_hold_of_the_prototypes() -> None:
    pool = make_pool()
    optimiser = torch.optim.Adam(pool.parameters(), lr=0.1)
    for batch in batches(4):
        optimiser.zero_grad()
        pool(batch).square().sum().backward()
        before = pool.prototypes.clone()
        optimiser.step()
    assert not torch.equal(pool.prototypes, before)


def test_init_from_features_at_hand() -> None:
    pool = make_pool()
    parameter = pool.prototypes
    maps = torch.randn(2, 8, 3, 3)
    pool.init_from(maps)
    points = clip(maps.flatten(2).transpose(1, 2).reshape(-1, 8))
    torch.testing.assert_close(pool.prototypes.detach(), points[greedy_k_centre(points, 4).indices])
    assert pool.ready
    assert pool.prototypes is parameter
    pool.init_from(points[:4] * 5)
    torch.testing.assert_close(pool.prototypes.detach().sum(), clip(points[:4] * 5).sum())
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, :3] = mask[1, 8] = True
    pool.init_from(maps, mask)
    expected = points[[0, 1, 2, 17]]
    assert {tuple(row) for row in pool.prototypes.tolist()} == {tuple(row) for row in expected.tolist()}
    with pytest.raises(ValueError, match="4 prototypes need at least as many features, got 3"):
        pool.init_from(points[:3])


class Head(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module, pool: GeneralizedSumPool) -> None:
        super().__init__()
        self.layer, self.pool = layer, pool

    def forward(self, tokens: torch.Tensor, details: bool) -> torch.Tensor | Pooled:
        return self.pool(self.layer(tokens), details=details)


def train_on_one_rank(rank: int, ranks: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    torch.manual_seed(rank)  # different random starts: DDP makes the parameters equal
    pool = GeneralizedSumPool(8, 4, init="k-centre", memory=20, learn_keep=True, learn_sharpness=True)
    model = DistributedDataParallel(Head(torch.nn.Linear(8, 8), pool))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, batch in enumerate(batches(6, size=6)):
        mine = batch[: 4 if index % 2 else 3] if rank == 0 else batch[4 if index % 2 else 3 :]  # uneven shares
        optimiser.zero_grad()
        pooled = model(mine, details=index % 3 == 0)
        loss = pooled.square().sum() if isinstance(pooled, torch.Tensor) else pooled.vector.square().sum()
        loss.backward()
        optimiser.step()
    torch.save({"ready": pool.ready, "state": model.module.state_dict()}, f"{folder}/rank{rank}")
    dist.barrier()
    os._exit(0)  # the clean-up of gloo aborts now and then on a busy machine


@pytest.mark.slow
def test_all_ranks_end_with_the_same_prototypes(tmp_path: Path) -> None:
    multiprocessing.spawn(train_on_one_rank, (2, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}") for rank in range(2))
    assert first["ready"]
    assert second["ready"]
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name


@pytest.mark.parametrize("cost", ["distance", "dot"])
def test_optimal_transport_starts_from_data(cost: str) -> None:
    """Until then the vector is the average and zeros; evaluation and checkpoints do not disturb the start."""
    torch.manual_seed(0)
    settings = {"cost": cost, "init": "k-centre-released", "memory": 20, "delay": 1}
    pool = create("otp", 8, num_prototypes=4, **settings)
    assert isinstance(pool, OptimalTransportPool)
    parameter, data = pool.prototypes, batches(4)
    for batch in data[:3]:
        pool.eval()(batch)
        vectors = pool.train()(batch)
        assert torch.equal(vectors[:, :8], batch.mean(1))
        assert not vectors[:, 8:].any()
        assert not pool.ready
    vectors.sum().backward()
    assert parameter.grad is not None
    restored = create("otp", 8, num_prototypes=4, **settings)
    restored.load_state_dict(pool.state_dict())
    vectors = pool(data[3])
    assert torch.equal(restored(data[3]), vectors)
    assert pool.ready
    assert pool.prototypes is parameter
    memory = clip(torch.cat([batch.mean(1) for batch in data[1:]])[:20])
    chosen = memory[4:][greedy_k_centre(memory[4:], 4, memory[:4]).indices]
    if cost == "dot":
        chosen = chosen / chosen.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(pool.prototypes.detach(), chosen)
    plain = create("otp", 8, num_prototypes=4, cost=cost)
    plain.load_state_dict({"prototypes": chosen})
    torch.testing.assert_close(vectors, plain(data[3]))


def test_chosen_prototypes_end_the_wait_of_optimal_transport() -> None:
    pool = OptimalTransportPool(8, 4, init="k-centre", memory=20)
    pool.init_from(batches(1)[0])
    assert pool.ready
    with pytest.raises(ValueError, match="init must be one of random, k-centre, k-centre-released, got 'pca'"):
        create("otp", 8, init="pca")
