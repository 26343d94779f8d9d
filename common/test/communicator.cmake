# The communicator: each backend with each world size, as processes; and unit tests of its parts.
multinode_program(communicator_check communicator_check.cpp)
target_link_libraries(communicator_check PRIVATE multinode::communicator)
multinode_program(communicator_overhead communicator_overhead.cpp)
target_link_libraries(communicator_overhead PRIVATE multinode::communicator)

add_executable(communicator_test communicator_test.cpp)
multinode_warnings(communicator_test)
target_link_libraries(communicator_test PRIVATE multinode::communicator multinode::testing GTest::gtest_main)
target_compile_definitions(communicator_test PRIVATE
  COMMUNICATOR_CHECK="$<TARGET_FILE:communicator_check>"
  COMMUNICATOR_RANKS="${CMAKE_CURRENT_SOURCE_DIR}/communicator_ranks.sh")
add_dependencies(communicator_test communicator_check)
gtest_discover_tests(communicator_test TEST_PREFIX common.communicator. TEST_FILTER "-*Ranks*:Refusal*"
  PROPERTIES TIMEOUT 300 PROCESSORS 1 LABELS unit)
gtest_discover_tests(communicator_test TEST_PREFIX common.communicator. TEST_FILTER "*Ranks*:Refusal*"
  TEST_LIST communicator_programs PROPERTIES TIMEOUT 300 PROCESSORS 3 LABELS local)

set(environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)
function(communicator_ranks name ranks backend program)
  set(start ${CMAKE_CURRENT_SOURCE_DIR}/communicator_ranks.sh ${ranks})
  if(backend STREQUAL "mpi")
    set(start ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks})
  endif()
  add_test(NAME common.communicator.${name} COMMAND ${start} $<TARGET_FILE:${program}> --backend ${backend} ${ARGN})
  set_tests_properties(common.communicator.${name} PROPERTIES
    TIMEOUT 300 PROCESSORS ${ranks} RESOURCE_LOCK mpirun_sessions LABELS local ENVIRONMENT "${environment}")
endfunction()

foreach(backend mpi gloo)
  string(TOUPPER ${backend} part)
  if(MULTINODE_HAVE_${part})
    foreach(ranks 1 2 3 4 5 8)
      communicator_ranks(${backend}.${ranks} ${ranks} ${backend} communicator_check)
    endforeach()
    communicator_ranks(${backend}.overhead 2 ${backend} communicator_overhead --bound 3)
    set_tests_properties(common.communicator.${backend}.overhead PROPERTIES RUN_SERIAL ON LABELS slow)
  endif()
endforeach()
if(MULTINODE_HAVE_MPI)
  communicator_ranks(mpi.pieces 3 mpi communicator_check --largest-count 999)
  communicator_ranks(mpi.overhead-planted 2 mpi communicator_overhead --bound 3 --planted 100000 --blocks 11)
  set_tests_properties(common.communicator.mpi.overhead-planted PROPERTIES RUN_SERIAL ON LABELS slow WILL_FAIL ON)
endif()
