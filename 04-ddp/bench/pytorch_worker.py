"""One rank of PyTorch's side of compare_with_pytorch.py, which starts it with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. Each line of standard input asks for a measurement, each line of standard output answers one: JSON."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

SIZES = [784, 512, 512, 10]


def perceptron():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.25), nn.Linear(512, 512), nn.ReLU(),
                         nn.Dropout(0.25), nn.Linear(512, 10))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if stride == 1 and inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(y)).add_(self.shortcut(x)), inplace=True)


def resnet18():
    blocks = [Block(64, 64, 1), Block(64, 64, 1)]
    for width in (128, 256, 512):
        blocks += [Block(width // 2, width, 2), Block(width, width, 1)]
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                         nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Training:
    """A model, its optimizer and its batches, all in memory. `batch` is this rank's; `reduce` one of ddp, per-parameter
    (an all_reduce for each gradient, after the backward pass), flat (one for all of them), none (this rank is alone);
    `options` are DistributedDataParallel's."""

    def __init__(self, batch, model="perceptron", reduce="ddp", optimizer="fused", channels_last=False, options={}):
        torch.manual_seed(0)
        self.reduce = reduce
        if model == "perceptron":
            self.model, shape, classes, batches, settings = perceptron(), (784,), 10, 16, {"momentum": 0.9}
        else:
            self.model, shape, classes, batches, settings = resnet18(), (3, 224, 224), 1000, 1, {}
        self.batches = [(torch.rand(batch, *shape) * 2 - 1, torch.randint(classes, (batch,))) for _ in range(batches)]
        if channels_last:
            self.model.to(memory_format=torch.channels_last)
            self.batches = [(x.to(memory_format=torch.channels_last), labels) for x, labels in self.batches]
        self.parameters = list(self.model.parameters())
        if reduce == "ddp":
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True, **options)
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-3, **{optimizer: True}, **settings)
        self.steps = 0

    def step(self):
        inputs, labels = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self.model(inputs), labels).backward()
        if self.reduce == "per-parameter":
            for parameter in self.parameters:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        elif self.reduce == "flat":
            flat = torch.cat([parameter.grad.view(-1) for parameter in self.parameters])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            parts = flat.split([parameter.numel() for parameter in self.parameters])
            for parameter, part in zip(self.parameters, parts):
                parameter.grad = part.view_as(parameter)
        self.optimizer.step()


class Products:
    """The matrix products of the perceptron's step, and nothing else."""

    def __init__(self, batch):
        self.calls = []
        for layer, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:])):
            x, w, y = torch.rand(batch, inputs), torch.rand(outputs, inputs), torch.rand(batch, outputs)
            self.calls += [(x, w.t(), torch.empty_like(y)), (y.t(), x, torch.empty_like(w))]
            self.calls += [(y, w, torch.empty_like(x))] if layer > 0 else []
        self.flops = sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b, _ in self.calls)

    def step(self):
        for a, b, out in self.calls:
            torch.mm(a, b, out=out)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    made = {}
    for line in sys.stdin:
        request = json.loads(line)
        seconds = request.pop("seconds")
        key = json.dumps(request, sort_keys=True)
        if key not in made:
            made[key] = {"training": Training, "products": Products}[request.pop("measure")](**request)
            for _ in range(3):
                made[key].step()
        work = made[key]
        start = time.perf_counter()
        for _ in range(3):
            work.step()
        steps = torch.tensor(seconds * 3 / (time.perf_counter() - start))
        dist.broadcast(steps, 0)  # all ranks make as many
        steps = max(3, int(steps))
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            work.step()
        seconds = (time.perf_counter() - start) / steps
        print(json.dumps({"step_ms": seconds * 1e3, "gflops": getattr(work, "flops", 0) / seconds / 1e9,
                          "version": torch.__version__}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
