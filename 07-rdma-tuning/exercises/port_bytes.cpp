// port_bytes FOLDER prints how much each RDMA port has carried, from a copy of /sys in FOLDER. Write the whole program.
// The counters are the files class/infiniband/DEVICE/ports/PORT/counters/port_xmit_data and port_rcv_data. They count
// in units of 4 bytes. One line for each port, by the name of the device, and then by the number of the port:
//
//   mlx5_0 port 1: sent 250004000 bytes, received 4000 bytes
//   mlx5_1 port 1: sent 0 bytes, received 16 bytes
//   mlx5_1 port 2: no counters
//
//   g++ -std=c++20 -O2 port_bytes.cpp -o port_bytes
//   ./port_bytes /sys
//
// Exit status: 0; 1 if a port has no counters, 77 if there is no RDMA device.
// After: gid_table.cpp.
// SPDX-License-Identifier: Apache-2.0
