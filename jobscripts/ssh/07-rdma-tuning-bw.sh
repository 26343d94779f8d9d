#!/usr/bin/env bash
# Bus bandwidth with RDMA and without it, for several numbers of processes: the table of the EPFL tutorial. Start it on a host.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

read -ra options <<<"${OPTIONS:=-b 8 -e 4G -f 8}" # all_reduce_perf --help lists them
: "${PROCESSES:=2,4}" # 2,4,8,16,32 on 4 hosts with 8 GPUs
exec "$BUILD/07-rdma-tuning/rdma_bw" --processes "$PROCESSES" --timeout "$TIME_LIMIT" \
  --launch "mpirun -n {n} --hostfile $HOSTFILE --map-by node --bind-to none" -- "${options[@]}"
