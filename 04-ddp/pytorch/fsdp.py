"""train_sharded.cpp: each rank keeps a part of every layer."""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from lesson import *

model, mesh = network(), init_device_mesh("cpu", (size,))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)  # gathered before its forward and its backward pass, then freed
fully_shard(model, mesh=mesh)
train(model, part)
check(model.named_parameters())
