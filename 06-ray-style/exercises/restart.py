"""An actor adds up numbers, and dies after half of them. Ray starts it again: max_restarts and max_task_retries say so. But
the sum is wrong. Ray restores the process, not its state.

    ray start --head --num-cpus=2
    python3 restart.py

Exit status: 0 if the sum is right although the actor died, 1 if not.
SPDX-License-Identifier: Apache-2.0
"""
import os, pathlib, sys, tempfile
import ray


@ray.remote(max_restarts=1, max_task_retries=-1)
class Sum:
    def __init__(self, folder):
        self.file = folder / "sum"
        self.sum = 0  # TODO (exercise): the sum is too small

    def add(self, number):
        if number == 51 and not (self.file.parent / "died").exists():
            (self.file.parent / "died").touch()
            os.kill(os.getpid(), 9)
        self.sum += number
        return self.sum


ray.init(address="auto", logging_level="error", log_to_driver=False)
with tempfile.TemporaryDirectory(dir=os.getcwd()) as name:  # all nodes must see it: Ray may start the actor on any of them
    folder = pathlib.Path(name)
    actor = Sum.remote(folder)
    for number in range(1, 101):
        result = ray.get(actor.add.remote(number))
    died = (folder / "died").exists()
right = died and result == 5050
print(f"{'RIGHT' if right else 'WRONG'}: 1 + 2 + ... + 100 = {result}, and the actor {'died once' if died else 'did not die'}")
sys.exit(0 if right else 1)
