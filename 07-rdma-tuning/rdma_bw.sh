#!/usr/bin/env bash
# rdma_bw: what RDMA is worth. Runs chapter 02's all_reduce_perf with RDMA and without it; rdma_tune verify proves by the
# counters of this node which of them carried the data.
# Exit status: 0 both measured, the first over RDMA; 1 a run failed, or used the other path; 2 bad command line; 3 the
# counters cannot tell; 77 no RDMA on this node: only the run without it was made.
set -euo pipefail

usage() {
  cat <<'END'
usage: rdma_bw [OPTION...] [-- OPTIONS of all_reduce_perf; default: -b 8 -e 128M -f 8]

  --launch COMMAND    starts {n} processes on the nodes, of which this is one (default: mpirun -n {n})
  --processes N,...   the numbers {n} (default: 2)
  --backend NAME      nccl, or mpi over UCX (default: nccl where this node has NVIDIA's driver, else mpi)
  --timeout SECONDS   time that one run may take (default: 600)
  --baseline SECONDS  time to watch the idle machine before each run; its traffic is subtracted (default: 1)
  --sysfs DIR         the folder to read in place of /sys
END
}
end() { # status, text
  echo "rdma_bw: $2" >&2
  exit "$1"
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) # where each node finds the programs
launch='mpirun -n {n}' processes=2 backend=mpi timeout=600 baseline=1 sysfs=/sys
[[ ! -e /proc/driver/nvidia/version ]] || backend=nccl
while (($#)); do
  case $1 in
    --help) usage && exit ;;
    --launch | --processes | --backend | --timeout | --baseline | --sysfs)
      (($# > 1)) || end 2 "$1 needs a value; see --help"
      declare "${1#--}=$2"
      shift 2
      ;;
    --) shift && break ;;
    *) end 2 "unknown argument '$1'; see --help" ;;
  esac
done
(($#)) || set -- -b 8 -e 128M -f 8
[[ $processes =~ ^[0-9]+(,[0-9]+)*$ ]] || end 2 "--processes must be numbers such as 2,4,8, not '$processes'"
[[ $processes != *,* || $launch = *'{n}'* ]] || end 2 "--processes has several numbers, but --launch has no {n}"
[[ $timeout =~ ^[0-9]+$ ]] || end 2 "--timeout must be a number of seconds, not '$timeout'"
[[ $backend = nccl || $backend = mpi ]] || end 2 "--backend must be nccl or mpi, not '$backend'"
settings=$("$here/rdma_tune" --export --sysfs "$sysfs" 2>/dev/null) || end 2 "rdma_tune cannot read $sysfs"
environment=() # UCX, which rdma_tune's settings are for, is one of several ways of Open MPI
[[ $backend = nccl || $settings = *NCCL_IB_DISABLE* ]] ||
  environment=(env OMPI_MCA_pml=ucx OMPI_MCA_opal_common_ucx_tls=any OMPI_MCA_opal_common_ucx_devices=any)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

measure() { # name of the run, number of processes, option of rdma_tune exec, options of the benchmark
  local status=0 words
  eval "words=(${launch//'{n}'/"$2"})" # quotes as in a shell
  echo "rdma_bw: $2 processes, $1 RDMA ..." >&2
  timeout --foreground -k 10 "$timeout" "$here/rdma_tune" verify --sysfs "$sysfs" --baseline "$baseline" -- \
    "${words[@]}" "${environment[@]}" "$here/rdma_tune" exec --sysfs "$sysfs" "$3" -- \
    "$here/../02-mpi/all_reduce_perf" --backend "$backend" --json /dev/stdout "${@:4}" \
    >"$temporary/out" 2>"$temporary/err" || status=$?
  ((status == 0)) || cat "$temporary/out" "$temporary/err" >&2
  case $status in
    0) ;;
    77) end 77 "the benchmark lacks its hardware (exit status 77); see --backend" ;;
    124) end 1 "the benchmark did not end within --timeout, $timeout s" ;;
    *) end 1 "the benchmark ended with exit status $status" ;;
  esac
  # The last size out of place, in Gbit/s: ranks, bytes, busbw, algbw, verdict.
  sed -nE 's/.*"algbw_gb_per_s":([^,]+),.*"busbw_gb_per_s":([0-9][^,]*),.*"in_place":false,.*"ranks":([0-9]+),.*"size_bytes":([0-9]+),.*/\3 \4 \2 \1/p' \
    "$temporary/out" | tail -n 1 |
    awk -v verdict="$(sed -n 's/^rdma_tune verify: //p' "$temporary/err")" '
      { sub(" ", "-", verdict); print $1, $2, 8 * $3, 8 * $4, verdict }' >"$temporary/row"
  [[ -s $temporary/row ]] || end 1 "the benchmark printed no bandwidth: --launch must start two processes or more"
  cat "$temporary/row" >>"$temporary/$1"
}

for n in ${processes//,/ }; do
  if [[ $settings = *NCCL_IB_DISABLE* ]]; then
    echo - - - - - >>"$temporary/with"
  else
    measure with "$n" --verbose "$@"
  fi
  measure without "$n" --sockets "$@"
done
paste -d ' ' "$temporary/with" "$temporary/without" | awk '
  function say(number, text) { if (status != 1) status = number; notes = notes (text ? $6 " processes: " text "\n" : "") }
  function row(a, b, c, d, e, f, g, h) { printf "%9s  %10s  %7s  %-11s  %13s  %7s  %-11s  %5s\n", a, b, c, d, e, f, g, h }
  function digits(x) { return x == "-" ? x : sprintf(x < 1 ? "%.3f" : "%.1f", x) }
  NR == 1 { row("processes", "RDMA busbw", "algbw", "over", "no RDMA busbw", "algbw", "over", "ratio") }
  { row($6, digits($3), digits($4), $5, digits($8), digits($9), $10, $1 == "-" || !$8 ? "-" : digits($3 / $8)) }
  $5 == "-" { say(77); hint = "no usable RDMA port here: only the run without RDMA was made\n" }
  $5 == "cannot-tell" { say(3, "the counters cannot tell whether the run with RDMA used it") }
  $5 ~ /^(tcp|mixed|no-traffic)$/ { say(1, "RDMA was not used (" $5 "): see rdma_tune verify and check") }
  $10 ~ /^(rdma|mixed)$/ { say(1, "the run without RDMA used RDMA") }
  END { printf "busbw and algbw: Gbit/s at %d bytes\n%s%s", $7, notes, hint; exit status }'
