"""The same as store_scale with torch's TCPStore, for comparison: python torch_store_scale.py RANKS...

Its clients call set, get and set again from one process; the server runs in another. torch has no arbiter, so the last
column is the time in which every rank reads a verdict that one of them has set.
"""
import multiprocessing
import sys
import time
from datetime import timedelta

import torch.distributed as dist


def serve(pipe):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    pipe.send(store.port)
    while True:
        pipe.recv()
        times = time.process_time()
        pipe.send(times)


def main():
    print("# ranks  meet_s  meet_server_cpu_s  beats_per_s  server_cpu_percent  verdict_s")
    for count in map(int, sys.argv[1:]):
        here, there = multiprocessing.Pipe()
        server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
        server.start()
        port = here.recv()

        def used():
            here.send("time")
            return here.recv()

        before, start = used(), time.monotonic()
        stores = [dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False,
                                timeout=timedelta(seconds=60)) for _ in range(count)]
        for rank, store in enumerate(stores):
            store.set(f"rank {rank}", "x" * 250)
        for rank in range(count):
            stores[0].get(f"rank {rank}")
        stores[0].set("digest", "1")
        for store in stores:
            store.get("digest")
        meet, met = time.monotonic() - start, used() - before

        before, start, sent = used(), time.monotonic(), 0
        while time.monotonic() < start + 10:
            due = int(count * (time.monotonic() - start) / 0.5)
            if sent >= due:
                time.sleep(0.001)
            for number in range(sent, due):
                stores[number % count].set(f"beat {number % count}", "3 2 -1 100 MPI_Allreduce")
            sent = max(sent, due)
        lasted = time.monotonic() - start
        load = (used() - before) / lasted * 100

        start = time.monotonic()
        stores[0].set("verdict", "rank 1 is gone")
        for store in stores:
            store.get("verdict")
        verdict = time.monotonic() - start
        print(f"{count:7d} {meet:7.3f} {met:18.3f} {sent / lasted:12.0f} {load:19.1f} {verdict:10.3f}", flush=True)
        server.kill()
        server.join()


if __name__ == "__main__":
    main()
