# shellcheck shell=bash
# Functions for tests in shell, which source this file.
set -euo pipefail
said=/dev/null # what the last command of expect said; a test that has such commands names a file

wrong() { # why: shows the output, and ends the test
  [[ ! -e $said ]] || cat "$said" >&2
  echo "WRONG: $*" >&2
  exit 1
}
expect() { # exit status, what must be said, both extended regular expressions, command ...: its skip (77) is the test's
  local status=0
  "${@:3}" >"$said" 2>&1 </dev/null || status=$?
  [[ $status != 77 || 77 =~ ^($1)$ ]] || { cat "$said" && exit 77; }
  [[ $status =~ ^($1)$ ]] || wrong "exit status $status, not $1: ${*:3}"
  [[ -z $2 ]] || grep -qaE -- "$2" "$said" || wrong "no line of the output matches '$2': ${*:3}"
}
until_true() { # command ...: true in time; no machine is so slow
  local deadline=$((SECONDS + 100))
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.02
  done
}
end_at_once() { # mpirun of Open MPI 4 and 5 kills the other ranks after a failure: else it waits a second for them first
  export OMPI_MCA_odls_base_sigkill_timeout=0 PRTE_MCA_odls_base_sigkill_timeout=0
}
finish() { # what the test needs, command ...: at EXIT; runs it. A skip is wrong where MULTINODE_REQUIRED has what it needs
  local status=$?
  "${@:2}"
  [[ $status != 77 || ${MULTINODE_REQUIRED:-} != *"$1"* ]] || wrong "skipped, and MULTINODE_REQUIRED has $1"
  exit "$status"
}
# folder of this test, hosts|slurm, arguments ...: ci/test-cluster's hosts or slurm, with the stand-ins; all of it ends
# when this test does
on_test_cluster() {
  local cluster status=0
  cluster=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../test-cluster")
  cluster_folder=$1 cluster_process=
  # shellcheck disable=SC2317 # the trap runs it
  end_cluster() {
    [[ -z $cluster_process ]] || { kill "$cluster_process" && wait "$cluster_process"; } 2>/dev/null || true
    rm -rf "$cluster_folder"
  }
  trap 'finish hosts end_cluster' EXIT
  trap 'exit 143' TERM INT HUP
  mkdir "$1/storage"
  PATH=$cluster/stand-ins:$PATH STAND_IN_STORAGE=$1/storage bash "$cluster/$2" "${@:3}" &
  cluster_process=$!
  wait "$cluster_process" || status=$?
  cluster_process=
  exit "$status"
}
