# mnrun: its parts, and the program itself with shell scripts as the processes.
add_executable(mnrun_test mnrun_test.cpp)
target_link_libraries(mnrun_test PRIVATE mnrun_parts multinode::testing GTest::gtest_main)
target_compile_definitions(mnrun_test PRIVATE MNRUN="$<TARGET_FILE:mnrun>")
multinode_warnings(mnrun_test)
add_dependencies(mnrun_test mnrun)
gtest_discover_tests(mnrun_test TEST_PREFIX 01. TEST_FILTER -Mnrun*
  PROPERTIES TIMEOUT 30 PROCESSORS 1 LABELS unit)
gtest_discover_tests(mnrun_test TEST_PREFIX 01. TEST_FILTER Mnrun*
  PROPERTIES TIMEOUT 60 PROCESSORS 4 LABELS local)
