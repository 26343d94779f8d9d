# The tests of explore.
add_executable(thread_counts explore_thread_counts.cpp)
multinode_warnings(thread_counts)
target_compile_features(thread_counts PRIVATE cxx_std_20)
target_link_libraries(thread_counts PRIVATE ${CMAKE_DL_LIBS})

add_library(nvml_stand_in MODULE nvml_stand_in.cpp)
multinode_warnings(nvml_stand_in)
target_compile_features(nvml_stand_in PRIVATE cxx_std_20)

multinode_test(explore_probe_test explore_probe_test.cpp LINK explore_parts PROGRAMS thread_counts nvml_stand_in
  PREFIX 01.)
multinode_test(explore_comparison_test explore_comparison_test.cpp LINK explore_parts PREFIX 01.)
multinode_test(explore_program_test explore_program_test.cpp LINK multinode::multinode PROGRAMS explore mnrun
  PREFIX 01. RANKS 4 TIMEOUT 120 LABELS local)
