"""train_tensor.cpp: the first layer split by columns, the second by rows."""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from lesson import *

mesh = init_device_mesh("cpu", (size,))
model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
train(model, batch)  # each rank has the whole batch
check(model.named_parameters())
