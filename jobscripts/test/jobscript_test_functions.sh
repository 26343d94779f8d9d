# shellcheck shell=bash
# For tests of the job scripts, which source this file: small problems, their answers, and builds of stand-ins.
# shellcheck disable=SC2034 # who sources it uses them
set -euo pipefail

images=${MULTINODE_FASHION_MNIST:+--data $MULTINODE_FASHION_MNIST}
declare -A options=( # of each chapter's program
  [01]='--require-equal program,libc,kernel'
  [02]='-b 8 -e 64K -f 32'
  [03]='--count 1000 --rounds 2'
  [04]="--steps 20 $images"
  [05]='--n 1e7'
  [06]="--steps 20 $images"
  [07]='-b 8 -e 64K -f 32'
)
declare -A answers=( # of two processes on each of two nodes
  [01]='4 processes on 2 nodes, launcher: (bcprun|mnrun|Open MPI)'
  [02]='Out of bounds values : 0 OK'
  [03]='RIGHT: 0 of [0-9]+ elements'
  [04]='RIGHT: test accuracy'
  [05]='pi = 3\.14159265358979'
  [06]='RIGHT: test accuracy'
  [07]='Out of bounds values : 0 OK'
)

# shellcheck disable=SC2016 # a stand-in has it as it is
rank_1_fails='[[ ${OMPI_COMM_WORLD_RANK:-${RANK:-${SLURM_PROCID:-}}} != 1 ]] || exit 3
exec sleep 1000'
stand_in_build() { # folder, the real build, lines of a shell script: a build whose programs are these, but real launchers
  local program
  mkdir -p "$1"/{01-environment,02-mpi,03-message-passing,04-ddp,05-pi-trapezoid,06-ray-style/jobs,07-rdma-tuning}
  for program in 01-environment/explore 02-mpi/all_reduce_perf 03-message-passing/message_passing_{mpi,gloo} \
    04-ddp/{fashion_mnist,train_ddp,horovod_style,synthetic_benchmark} 05-pi-trapezoid/pi 06-ray-style/jobs/fashion_mnist; do
    printf '#!/usr/bin/env bash\nset -euo pipefail\n%s\n' "$3" >"$1/$program"
    chmod +x "$1/$program"
  done
  for program in 01-environment/mnrun 06-ray-style/{cluster,start_cluster.sh} 07-rdma-tuning/rdma_tune; do
    cp "$2/$program" "$1/$program"
  done
}
