"""train_mixed.cpp and train_recompute.cpp: bfloat16 with float master weights, and recomputation."""
from torch.utils.checkpoint import checkpoint_sequential
from lesson import *


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()  # in float: the master weights

    def forward(self, samples):
        with torch.autocast("cpu", dtype=torch.bfloat16):  # products in bfloat16
            return checkpoint_sequential(self.layers, 2, samples, use_reentrant=False).float()


model = nn.parallel.DistributedDataParallel(Mixed())
train(model, part)
check(model.module.layers.named_parameters(), 1e-3)
