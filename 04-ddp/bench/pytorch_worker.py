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
    """A model, its optimizer and its batches, all in memory. `batch` is this rank's; without `ddp` this rank is alone;
    `options` are DistributedDataParallel's."""

    def __init__(self, batch, model="perceptron", ddp=True, optimizer="fused", channels_last=False, options={}):
        torch.manual_seed(0)
        if model == "perceptron":
            self.model, shape, classes, batches, settings = perceptron(), (784,), 10, 16, {"momentum": 0.9}
        else:
            self.model, shape, classes, batches, settings = resnet18(), (3, 224, 224), 1000, 1, {}
        self.batches = [(torch.rand(batch, *shape) * 2 - 1, torch.randint(classes, (batch,))) for _ in range(batches)]
        if channels_last:
            self.model.to(memory_format=torch.channels_last)
            self.batches = [(x.to(memory_format=torch.channels_last), labels) for x, labels in self.batches]
        self.parameters = list(self.model.parameters())
        if ddp:
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True, **options)
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-3, **{optimizer: True}, **settings)
        self.steps = 0

    def step(self):
        inputs, labels = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self.model(inputs), labels).backward()
        self.optimizer.step()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    made = {}
    for line in sys.stdin:
        request = json.loads(line)
        seconds = request.pop("seconds")
        key = json.dumps(request, sort_keys=True)
        if key not in made:
            made[key] = Training(**request)
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
        print(json.dumps({"step_ms": seconds * 1e3, "version": torch.__version__}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
