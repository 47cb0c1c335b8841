"""Two real processes on the CPU against one with the joined batch."""

import os
import sys

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from lookalike import objectives
from lookalike.objectives import (
    SPREADS,
    BetweenProxies,
    CentreCrowding,
    CentreSpread,
    Composed,
    Gathered,
    Loss,
    Objective,
)

WORLD = 2
CENTRES = ["spread of running means", "crowding of running means", "spread of proxies", "crowding of proxies"]
CASES = ["c1", "c2", "ms", "n-pair", "proxy-anchor", "soft-triple", "margin", "attributes", "between proxies", *CENTRES]


class Entropy(Objective):
    """Looks at attributes, and at all of them at once: the mean over the ranks' own losses would be another number."""

    def compute(self, embeddings, labels, attributes):
        mean = attributes.mean(0)
        return Loss((mean * mean.log()).sum() * embeddings.square().mean(), {"labels": labels.sum()})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.vector, self.attributes = nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, x):
        return self.vector(x), self.attributes(x).softmax(1)


def batch():
    generator = torch.Generator().manual_seed(7)
    # Classes lie across the border between the ranks: half of the pairs exist in the joined batch only.
    return torch.randn(8, 6, generator=generator, dtype=torch.float64), torch.tensor([0, 0, 1, 2, 2, 1, 3, 3])


def parts_of_a_run(name):
    torch.manual_seed(3)
    if name == "attributes":
        mixed = {"metric": (0.9, objectives.create("ms")), "entropy": (0.1, Entropy())}
        return Model().double(), Composed(mixed)
    if name == "between proxies":
        return Model().double(), BetweenProxies(objectives.create("ms"), 5, 4, 2, in_batch=0.1).double()
    if name in CENTRES:
        metric = objectives.create("proxy-anchor" if "of proxies" in name else "ms", classes=5, dim=4)
        where = {"proxies_of": metric} if "of proxies" in name else {"classes": 5, "dim": 4}
        spread = name.startswith("spread")
        centres = CentreSpread(**where, **SPREADS["mhe-1"], sample=3) if spread else CentreCrowding(**where)
        return Model().double(), Composed({"metric": (1.0, metric), "centres": (0.5, centres)}).double()
    return Model().double(), objectives.create(name, classes=5, dim=4).double()


def run(name, model, objective, inputs, labels):
    """What is compared: the loss, the parts for the log, the gradients of the model and of the objective."""
    vectors, attributes = model(inputs)
    loss = objective(vectors, labels, attributes)
    if name != "attributes":
        loss = loss._replace(value=loss.value + 0 * attributes.sum())  # DDP wants every parameter to take part
    loss.value.backward()
    return {
        "loss": loss.value.detach(),
        **{f"part {key}": value for key, value in loss.parts.items()},
        **{f"model {key.removeprefix('module.')}": p.grad.clone() for key, p in model.named_parameters()},
        **{f"own {key.removeprefix('objective.')}": p.grad.clone() for key, p in objective.named_parameters()},
        **{f"buffer {key.removeprefix('objective.')}": value.clone() for key, value in objective.named_buffers()},
    }


def worker(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    inputs, labels = (tensor.chunk(WORLD)[rank] for tensor in batch())
    results = {}
    for name in CASES:
        model, objective = parts_of_a_run(name)
        gathered = Gathered(objective)
        if rank == 1:
            with torch.no_grad():
                for parameter in objective.parameters():
                    parameter.add_(1)  # a rank that started elsewhere
        gathered.synchronise()
        results[name] = run(name, DistributedDataParallel(model), gathered, inputs, labels)
        gathered.average_gradients()
        results[f"{name} averaged"] = {
            f"own {key}": parameter.grad.clone() for key, parameter in objective.named_parameters()
        }
    model, objective = parts_of_a_run("proxy-anchor")
    wrapped = DistributedDataParallel(Gathered(objective))
    results["proxies in DDP"] = run("proxy-anchor", DistributedDataParallel(model), wrapped, inputs, labels)
    try:
        Gathered(objective)(torch.randn(3 + rank, 4), torch.zeros(3 + rank, dtype=torch.long))
    except ValueError as error:
        results["uneven"] = str(error)
    results["library"] = "pytorch_metric_learning" in sys.modules
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.barrier()
    os._exit(0)  # the clean-up of gloo aborts now and then on a busy machine


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(worker, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def one_process(name):
    model, objective = parts_of_a_run(name)
    return run(name, model, objective, *batch())


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(ranks, name):
    expected = one_process(name)
    assert all(value.abs().max() > 1e-3 for key, value in expected.items() if key == "model vector.weight")
    for results in ranks:
        assert results[name].keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(results[name][key], value, rtol=1e-9, atol=1e-12, msg=f"{name}: {key}")
        if name.endswith("running means"):
            assert results[name]["buffer objectives.centres.counts"].tolist() == [2, 2, 2, 2, 0]
        for key, value in results[f"{name} averaged"].items():
            torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-12)


def test_proxies_may_be_wrapped_in_ddp(ranks):
    expected = one_process("proxy-anchor")
    for results in ranks:
        given = {key.replace("module.objective.", ""): value for key, value in results["proxies in DDP"].items()}
        assert given.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(given[key], value, rtol=1e-9, atol=1e-12)


def test_uneven_shares_are_refused_everywhere(ranks):
    assert [results["uneven"][:62] for results in ranks] == [
        "every process must bring equally many pictures to a batch, her"
    ] * WORLD


def test_the_library_is_not_loaded_for_losses_of_our_own(ranks):
    assert [results["library"] for results in ranks] == [False] * WORLD  # fresh processes that have just used eight


def test_one_process_needs_no_gathering():
    torch.manual_seed(0)
    objective = objectives.create("proxy-anchor", classes=4, dim=4)
    gathered = Gathered(objective)
    gathered.synchronise()
    vectors, labels = torch.randn(8, 4), torch.arange(8) // 2
    assert gathered(vectors, labels).value == objective(vectors, labels).value
    assert gathered.proxy_parameters() == [objective.proxies]
    gathered.average_gradients()
