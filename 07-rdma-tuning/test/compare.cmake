multinode_test(compare_test compare_test.cpp PREFIX 07. RANKS 3 LABELS local PROGRAMS rdma_tune
  LINK rdma_tuning sysfs_tree multinode::multinode)
multinode_test(rdma_bw_test rdma_bw_test.cpp PREFIX 07. RANKS 2 LABELS local PROGRAMS rdma_bw all_reduce_perf
  LINK sysfs_tree multinode::multinode)
multinode_test(rdma_exercises_test exercises_test.cpp PREFIX 07. LABELS local PROGRAMS rdma_tune
  LINK rdma_tuning sysfs_tree)
