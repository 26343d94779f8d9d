"""Which rank is late? Rank 1 sleeps in each step, as if it read its data from a slow disk."""
import sys
import time
from torch.profiler import ProfilerActivity, profile, record_function
from lesson import *

model = nn.parallel.DistributedDataParallel(network())
optimizer = sgd(model)
with profile(activities=[ProfilerActivity.CPU]) as profiler:  # with GPUs also ProfilerActivity.CUDA
    for step in range(20):
        samples, answers = part(step)
        optimizer.zero_grad()
        with record_function("forward"):
            loss = cross_entropy(model(samples), answers)
        with record_function("slow"):
            time.sleep(0.05 * rank)  # rank 1 loads its data slowly, say
        with record_function("backward"):
            loss.backward()
        optimizer.step()
profiler.export_chrome_trace(f"rank{rank}.json")
times = {event.key: event.cpu_time_total / event.count / 1000 for event in profiler.key_averages()}
names = "forward", "slow", "backward", "gloo:all_reduce"
sys.stdout.write(f"rank {rank}: " + ", ".join(f"{name} {times[name]:.1f} ms" for name in names) + "\n")
dist.destroy_process_group()
