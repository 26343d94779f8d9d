#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same as train_on_ray.py by Ray Train, which places the ranks, watches them and starts them again.
usage: train_with_ray_train.py NUM_WORKERS MAX_FAILURES PROGRAM [ARGUMENT...]   Exit status: 0 right, 1 failed"""
import os, secrets, shutil, socket, subprocess, sys, tempfile
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def train(config):  # runs in each worker
    context = get_context()
    with socket.create_server(("", 0)) as free:
        address, port = broadcast_from_rank_zero((ray.util.get_node_ip_address(), free.getsockname()[1]))
    variables = {"RANK": context.get_world_rank(), "WORLD_SIZE": context.get_world_size(), "LOCAL_RANK": context.get_local_rank(),
                 "LOCAL_WORLD_SIZE": context.get_local_world_size(), "NODE_RANK": context.get_node_rank(),
                 "MASTER_ADDR": address, "MASTER_PORT": port, "MULTINODE_SECRET": config["secret"]}
    subprocess.run(["setpriv", "--pdeathsig", "KILL", *config["command"]], check=True, cwd=config["folder"],
                   env=os.environ | {name: str(value) for name, value in variables.items()})

if len(sys.argv) < 4: sys.exit(__doc__)
workers, max_failures, program, *arguments = sys.argv[1:]
ray.init(logging_level="warning")
DataParallelTrainer(
    train, train_loop_config={"command": [os.path.abspath(shutil.which(program) or program), *arguments], "folder": os.getcwd(),
                              "secret": secrets.token_hex(32)},  # keeps strangers out of the meeting of the ranks
    scaling_config=ScalingConfig(num_workers=int(workers)),
    run_config=RunConfig(storage_path=tempfile.mkdtemp(), failure_config=FailureConfig(max_failures=int(max_failures)))).fit()
