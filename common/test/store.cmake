# The stores: contract tests of all stores, tests of each one, hostile bytes, fuzzers.
add_executable(store_client store_client.cpp)
target_link_libraries(store_client PRIVATE multinode::world)
multinode_warnings(store_client)

foreach(test arbiter_test store_test tcp_store_test rendezvous_file_test torch_store_test)
  add_executable(${test} ${test}.cpp)
  target_link_libraries(${test} PRIVATE multinode::world multinode::testing GTest::gtest_main)
  target_compile_definitions(${test} PRIVATE STORE_CLIENT="$<TARGET_FILE:store_client>")
  add_dependencies(${test} store_client)
  multinode_warnings(${test})
endforeach()
gtest_discover_tests(store_test TEST_PREFIX common.store. TEST_FILTER -*Torch*
  PROPERTIES TIMEOUT 300 PROCESSORS 1 LABELS unit)
gtest_discover_tests(arbiter_test TEST_PREFIX common. PROPERTIES TIMEOUT 60 PROCESSORS 1 LABELS unit)
gtest_discover_tests(tcp_store_test TEST_PREFIX common.store. PROPERTIES TIMEOUT 300 PROCESSORS 1 LABELS unit)
gtest_discover_tests(rendezvous_file_test TEST_PREFIX common.store. PROPERTIES TIMEOUT 300 PROCESSORS 1 LABELS unit)
# With the real torch. Its server takes seconds to start, so all tests share one.
add_test(NAME common.store.torch.contract COMMAND store_test --gtest_filter=*Torch*)
add_test(NAME common.store.torch COMMAND torch_store_test)
set_tests_properties(common.store.torch.contract common.store.torch PROPERTIES
  TIMEOUT 180 PROCESSORS 1 LABELS slow SKIP_REGULAR_EXPRESSION "no PyTorch")

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # The library is compiled again, instrumented.
  foreach(fuzzer tcp_store_fuzz torch_store_fuzz)
    add_executable(${fuzzer} ${fuzzer}.cpp
      ../multinode/arbiter.cpp ../multinode/check.cpp ../multinode/endpoint.cpp ../multinode/signals.cpp ../multinode/socket.cpp
      ../multinode/store_protocol.cpp ../multinode/tcp_store.cpp ../multinode/torch_store.cpp)
    target_compile_features(${fuzzer} PRIVATE cxx_std_20)
    target_compile_options(${fuzzer} PRIVATE -O1 -g -fno-sanitize-recover=all -fsanitize=fuzzer,address,undefined)
    target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer,address,undefined)
    target_include_directories(${fuzzer} PRIVATE ..)
    target_link_libraries(${fuzzer} PRIVATE Boost::headers fmt::fmt Threads::Threads)
    multinode_warnings(${fuzzer})
    add_test(NAME common.store.${fuzzer}
      COMMAND ${fuzzer} -max_total_time=60 -timeout=10 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1)
    set_tests_properties(common.store.${fuzzer} PROPERTIES TIMEOUT 120 PROCESSORS 1 LABELS slow)
  endforeach()
endif()

add_executable(store_scale store_scale.cpp)
target_link_libraries(store_scale PRIVATE multinode::world)
multinode_warnings(store_scale)
add_test(NAME common.store.scale COMMAND store_scale 300)
set_tests_properties(common.store.scale PROPERTIES TIMEOUT 120 PROCESSORS 1 LABELS local)
