# read_launch: recorded environments, the launchers on this machine, a fuzzer.
add_executable(launch_print launch_print.cpp)
add_executable(launch_test endpoint_test.cpp launch_test.cpp)
add_executable(launch_live_test launch_live_test.cpp)
target_link_libraries(launch_print PRIVATE multinode::launch)
target_link_libraries(launch_test PRIVATE multinode::launch GTest::gtest_main)
target_link_libraries(launch_live_test PRIVATE multinode::testing GTest::gtest_main)
target_compile_definitions(launch_test PRIVATE ENVIRONMENTS="${CMAKE_CURRENT_SOURCE_DIR}/environments")
target_compile_definitions(launch_live_test PRIVATE LAUNCH_PRINT="$<TARGET_FILE:launch_print>")
add_dependencies(launch_live_test launch_print)
foreach(target launch_print launch_test launch_live_test)
  multinode_warnings(${target})
endforeach()
# 200 tests that take microseconds: one process for all.
add_test(NAME common.launch COMMAND launch_test)
set_tests_properties(common.launch PROPERTIES TIMEOUT 30 PROCESSORS 1 LABELS unit)
gtest_discover_tests(launch_live_test TEST_PREFIX common. TEST_FILTER -*Torchrun*
  PROPERTIES TIMEOUT 300 PROCESSORS 3 LABELS local)
gtest_discover_tests(launch_live_test TEST_PREFIX common. TEST_FILTER *Torchrun* TEST_LIST torchrun_live_tests
  PROPERTIES TIMEOUT 120 PROCESSORS 4 LABELS slow)

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # launch.cpp and its dependencies are compiled again, instrumented.
  add_executable(host_list_fuzz host_list_fuzz.cpp
    ../multinode/check.cpp ../multinode/endpoint.cpp ../multinode/host_list.cpp ../multinode/launch.cpp)
  target_compile_features(host_list_fuzz PRIVATE cxx_std_20)
  target_compile_options(host_list_fuzz PRIVATE -O1 -g -fno-sanitize-recover=all -fsanitize=fuzzer,address,undefined)
  target_link_options(host_list_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_include_directories(host_list_fuzz PRIVATE ..)
  target_link_libraries(host_list_fuzz PRIVATE fmt::fmt)
  multinode_warnings(host_list_fuzz)
  add_test(NAME common.launch.host_list_fuzz
    COMMAND host_list_fuzz -max_total_time=60 -timeout=10 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1)
  set_tests_properties(common.launch.host_list_fuzz PROPERTIES TIMEOUT 120 PROCESSORS 1 LABELS slow)
endif()
