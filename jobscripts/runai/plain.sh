#!/usr/bin/env bash
# Starts two pods, and in each a launcher that starts two processes.
set -euo pipefail
build=/mnt/scratch/multi-node-cpp/build/release # EDIT: the folder of your programs, in the volume
image=registry.example.com/multi-node-cpp:latest claim=my-scratch # EDIT: yours
command=("$build/01-environment/mnrun" --secret-file /mnt/scratch/secret --nproc-per-node 2 "$build/01-environment/who_am_i") # EDIT: your launcher and program
runai training pytorch submit plain -i "$image" --workers 1 -g 0 --existing-pvc "claimname=$claim,path=/mnt/scratch" --command -- "${command[@]}"
