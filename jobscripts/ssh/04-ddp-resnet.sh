#!/usr/bin/env bash
# Trains a ResNet on CIFAR-10 (--data), or on random images (--use-syn); needs a build with libtorch.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "$0")/job.sh" # it and hostfile have lines to change, too

program=("$BUILD/04-ddp/resnet" --model-dir "$LOGS" --json "$LOGS/result.jsonl") # EDIT: your program
read -ra options <<<"${OPTIONS:=--arch resnet18 --use-syn --image-size 32}" # EDIT: its options (--help lists them); OPTIONS='...' replaces them
with_all_hosts mpirun --hostfile "$HOSTFILE" --bind-to none --timeout "$TIME_LIMIT" "${per_rank[@]}" \
  env "${variables[@]}" "${tune[@]}" "${program[@]}" "${options[@]}"
