#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
directives=(--name 01-environment-explore --array-type PYTORCH --replicas 2 --total-runtime 10m)
# The first commands of the BCP tutorial: what the job has, and what is installed on which replica.
# Submit it where ngc is logged in: bash 01-environment-explore.sh
set -euo pipefail
source "$(dirname "$0")/job.sh" # it has lines to change, too

: "${OPTIONS:=--require-command cowsay}" # explore --help lists them
: "${INSTALL:=pip install cowsay}" # what brings the command of OPTIONS
env | grep -E '(NODE|SIZE)='
"${bcprun[@]}" -c 'echo hello'
"${bcprun[@]}" -c hostname
"${bcprun[@]}" -p 2 -c hostname
explore="$BUILD/01-environment/explore $OPTIONS"
bash -c "$INSTALL"
"${bcprun[@]}" -c "$explore" || echo "installed on this replica only"
"${bcprun[@]}" -c "$INSTALL"
"${bcprun[@]}" -c "$explore"
