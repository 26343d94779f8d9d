"""train_overlap.cpp: data parallelism with buckets during the backward pass."""
from lesson import *

model = nn.parallel.DistributedDataParallel(network())
train(model, part)  # loss.backward() reduces buckets while it runs
check(model.module.named_parameters())
