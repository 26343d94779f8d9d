// Of rdma_tune_mpi alone: the ranks of `rdma_tune compare` meet over MPI.
#include <multinode/communicator/libraries.hpp>
