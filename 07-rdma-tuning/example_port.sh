#!/usr/bin/env bash
# Writes what /sys shows of one RoCE port of a node into FOLDER, for machines without RDMA: bash example_port.sh FOLDER
set -euo pipefail
port=${1:?usage: bash example_port.sh FOLDER}/class/infiniband/mlx5_0/ports/1
mkdir -p "$port/gids" "$port/gid_attrs/types" "$port/gid_attrs/ndevs"
echo Ethernet >"$port/link_layer"
echo '4: ACTIVE' >"$port/state"
index=0
while read -r gid type; do
  echo "$gid" >"$port/gids/$index"
  echo "$type" >"$port/gid_attrs/types/$index"
  echo enp61s0 >"$port/gid_attrs/ndevs/$index"
  index=$((index + 1))
done <<'END'
fe80:0000:0000:0000:ba3f:d2ff:fe12:3456 IB/RoCE v1
fe80:0000:0000:0000:ba3f:d2ff:fe12:3456 RoCE v2
0000:0000:0000:0000:0000:ffff:0a01:0005 IB/RoCE v1
0000:0000:0000:0000:0000:ffff:0a01:0005 RoCE v2
fd00:0010:0001:0000:0000:0000:0000:0005 IB/RoCE v1
fd00:0010:0001:0000:0000:0000:0000:0005 RoCE v2
END
