#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program on a Ray cluster with one process per rank. When a rank or a node fails, this driver starts all ranks
again, and the program resumes from its own newest checkpoint. Exit status: the program's; 1 if Ray lost a rank once too
often."""
import argparse, os, secrets, shutil, socket, subprocess, sys
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

@ray.remote(num_cpus=1)
class Rank:
    def place(self):
        with socket.create_server(("", 0)) as free:  # its port is MASTER_PORT if this becomes rank 0
            return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), free.getsockname()[1], os.getpid()

    def run(self, command, variables, folder):  # yields the program's lines, then its exit status
        environment = os.environ | {key: str(value) for key, value in variables.items()}
        program = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], env=environment, cwd=folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        yield from (line for line in program.stdout)  # Ray accepts generators only: `yield from program.stdout` fails
        yield program.wait()

def run(options):  # returns the exit status and the reason
    group = ray.util.placement_group([{"CPU": 1, "GPU": options.gpus_per_worker}] * options.num_workers)  # all, or none
    try:
        while not group.wait(10):
            print(f"waiting for {options.num_workers} free CPUs, {options.gpus_per_worker} GPUs with each", flush=True)
        actors = [Rank.options(num_gpus=options.gpus_per_worker, scheduling_strategy=InGroup(group, i)).remote()
                  for i in range(options.num_workers)]
        places = sorted(zip(ray.get([actor.place.remote() for actor in actors]), actors), key=lambda place: place[0][0])
        nodes, streams, secret = [place[0] for place, _ in places], {}, secrets.token_hex(32)  # the ranks of a node are neighbours
        print("actors: " + " ".join(str(place[3]) for place, _ in places), flush=True)
        for rank, node in enumerate(nodes):
            variables = {"RANK": rank, "WORLD_SIZE": len(nodes), "LOCAL_RANK": rank - nodes.index(node),
                         "LOCAL_WORLD_SIZE": nodes.count(node), "NODE_RANK": len(set(nodes[:rank]) - {node}),
                         "MASTER_ADDR": places[0][0][1], "MASTER_PORT": places[0][0][2], "MULTINODE_SECRET": secret}
            streams[places[rank][1].run.remote(options.command, variables, os.getcwd())] = rank
        while streams:
            (stream,), _ = ray.wait(list(streams))
            if isinstance(line := ray.get(next(stream)), str):
                print(f"(rank {streams[stream]}) {line}", end="", flush=True)
            elif line != 0:
                return line, f"rank {streams[stream]} ended with status {line}"
            else:
                del streams[stream]
        return 0, ""
    except ray.exceptions.RayError as error:
        return 1, str(error).splitlines()[0]
    finally:
        ray.util.remove_placement_group(group)  # kills the actors, and each program dies with its actor

parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s [OPTION...] PROGRAM [ARGUMENT...]")
parser.add_argument("--num-workers", type=int, default=2, help="number of ranks (default: %(default)s)")
parser.add_argument("--gpus-per-worker", type=int, default=0, help="(default: %(default)s)")
parser.add_argument("--max-failures", type=int, default=0, help="maximum number of restarts (default: %(default)s)")
parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
options = parser.parse_args()
if not options.command: parser.error("say the program behind the options")
if not (program := shutil.which(options.command[0])): parser.error(f"there is no program '{options.command[0]}' here or on the PATH")
options.command[0] = os.path.abspath(program)  # the same on all nodes
ray.init(logging_level="warning")
for failure in range(1, options.max_failures + 2):
    status, reason = run(options)
    if status == 0: break
    print(f"failure {failure}: {reason}", flush=True)
sys.exit(status if status >= 0 else 128 - status)
