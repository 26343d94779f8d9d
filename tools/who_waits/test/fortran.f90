! For programs_test.py: rank 1 frees a window, for which the other rank does not wait.
program fortran
  use mpi
  implicit none
  integer :: rank, number, window, error
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Win_create(number, 4_MPI_ADDRESS_KIND, 4, MPI_INFO_NULL, MPI_COMM_WORLD, window, error)
  if (rank == 1) call MPI_Win_free(window, error)
  call MPI_Barrier(MPI_COMM_WORLD, error)
  call MPI_Finalize(error)
end program
