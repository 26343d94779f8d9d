"""What the programs of pytorch.md share: a network, its data, and the comparison with a training in one process.

SPDX-License-Identifier: Apache-2.0
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

dist.init_process_group("gloo")  # with GPUs "nccl"; torchrun sets RANK, WORLD_SIZE and MASTER_ADDR
rank, size = dist.get_rank(), dist.get_world_size()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))


def batch(step):
    """The whole batch: 96 samples, and for each which of its first eight numbers is the largest."""
    samples = torch.randn(96, 64, generator=torch.Generator().manual_seed(step))
    return samples, samples[:, :8].argmax(1)


def part(step):
    """This rank's part of the batch."""
    return [tensor.chunk(size)[rank] for tensor in batch(step)]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, data):
    optimizer = sgd(model)
    for step in range(20):
        samples, answers = data(step)
        optimizer.zero_grad()
        cross_entropy(model(samples), answers).backward()
        optimizer.step()


def check(parameters, tolerance=1e-6):
    """Compares parameters, by their names in network(), with those of one process that has the whole batch."""
    alone = network()
    train(alone, batch)
    wanted, off = dict(alone.named_parameters()), torch.tensor(0.0)
    for name, found in parameters:
        if hasattr(found, "full_tensor"):  # sharded: collects the parts of all ranks
            found = found.full_tensor()
        off = torch.maximum(off, (found - wanted[name]).detach().abs().max())
    dist.all_reduce(off, op=dist.ReduceOp.MAX)
    right = off.item() <= tolerance
    if rank == 0:
        print(f"{'RIGHT' if right else 'WRONG'}: off by {off.item():.0e}", flush=True)
    dist.barrier()  # else torchrun could end rank 0 before it prints
    dist.destroy_process_group()
    raise SystemExit(not right)
