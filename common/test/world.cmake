multinode_program(world_program world_program.cpp)
multinode_program(world_program_other world_program.cpp)
target_link_libraries(world_program PRIVATE multinode::communicator)
target_link_libraries(world_program_other PRIVATE multinode::communicator)
target_compile_definitions(world_program_other PRIVATE ANOTHER_BUILD)
multinode_test(world_test world_test.cpp LINK multinode::world PREFIX common. RANKS 3 LABELS local SLOW *Torchrun*
  PROGRAMS world_program world_program_other)
target_compile_definitions(world_test PRIVATE $<$<BOOL:${MULTINODE_HAVE_MPI}>:MULTINODE_HAVE_MPI>)
multinode_test(common_test common_test.cpp processes_test.cpp small_parts_test.cpp LINK multinode::world PREFIX common.)
