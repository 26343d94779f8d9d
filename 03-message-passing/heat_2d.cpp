// heat.cpp on a plate: the ranks form a grid, each has a tile, and in every step it exchanges the edges of its tile
// with its neighbours above, below, left and right. Every bit must be that of one process.
//
//   mpicxx -std=c++20 -O2 -ffp-contract=off heat_2d.cpp -o heat_2d
//   mpirun -n 4 ./heat_2d
//
// Exit status: 0 if every cell has the bits of one process and is the known solution to within rounding, 1 if not.
// After: heat.cpp. New: MPI_Dims_create, MPI_Cart_create, MPI_Cart_coords, MPI_Cart_shift, MPI_Type_vector.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <vector>

constexpr double r = 0.125;  // diffusivity x time step / cell width^2: stable up to 0.25
constexpr int all_rows = 240, all_columns = 300, steps = 100, tag = 5;

double sine(int i, int all) { return std::sin(std::numbers::pi * i / (all + 1)); }  // 0 at the walls

// Part of the plate, row after row, with a halo of one cell on each side. At the walls the halo stays 0.
struct Tile {
  Tile(int first_row, int first_column, int n, int m)
      : rows(n), columns(m), old(std::size_t(n + 2) * std::size_t(m + 2)), now(old) {
    for (int i = 1; i <= rows; ++i)
      for (int j = 1; j <= columns; ++j)
        now[at(i, j)] = sine(first_row + i, all_rows) * sine(first_column + j, all_columns);
  }
  std::size_t at(int i, int j) const { return std::size_t(i) * std::size_t(columns + 2) + std::size_t(j); }
  void step() {
    for (int i = 1; i <= rows; ++i)
      for (int j = 1; j <= columns; ++j) {
        const double u = old[at(i, j)];
        now[at(i, j)] = u + r * (((old[at(i - 1, j)] - u) + (old[at(i + 1, j)] - u)) +
                                 ((old[at(i, j - 1)] - u) + (old[at(i, j + 1)] - u)));
      }
  }
  int rows, columns;
  std::vector<double> old, now;
};

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int size = 0, rank = 0, asked = 1, shape[2] = {}, walls[2] = {}, place[2] = {}, up = 0, down = 0, left = 0, right = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  MPI_Dims_create(size, 2, shape);  // 2 x 2 for 4 ranks, 3 x 2 for 6, 5 x 1 for 5
  if (shape[0] > all_rows) {
    std::fprintf(stderr, "heat_2d: %d rows of tiles, but only %d rows of cells\n", shape[0], all_rows);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Comm grid;  // not periodic: the neighbour beyond a wall is MPI_PROC_NULL
  MPI_Cart_create(MPI_COMM_WORLD, 2, shape, walls, /* MPI may give the ranks other numbers */ true, &grid);
  MPI_Comm_rank(grid, &rank);
  MPI_Cart_coords(grid, rank, 2, place);
  MPI_Cart_shift(grid, 0, 1, &up, &down);
  MPI_Cart_shift(grid, 1, 1, &left, &right);
  const int first_row = all_rows * place[0] / shape[0], last_row = all_rows * (place[0] + 1) / shape[0];
  const int first_column = all_columns * place[1] / shape[1], last_column = all_columns * (place[1] + 1) / shape[1];
  Tile own(first_row, first_column, last_row - first_row, last_column - first_column);
  Tile whole(0, 0, all_rows, all_columns);  // every rank computes the plate alone as well, for the comparison

  MPI_Datatype column;  // one cell of each row: from one to the next it is a row with its two halo cells
  MPI_Type_vector(own.rows, 1, own.columns + 2, MPI_DOUBLE, &column);
  MPI_Type_commit(&column);
  for (int step = 0; step < steps; ++step) {
    std::swap(own.old, own.now);
    std::swap(whole.old, whole.now);
    const int n = own.rows, m = own.columns;
    const auto cell = [&](int i, int j) { return &own.old[own.at(i, j)]; };  // nothing needs the halo's corners
    MPI_Sendrecv(cell(1, 1), m, MPI_DOUBLE, up, tag, cell(n + 1, 1), m, MPI_DOUBLE, down, tag, grid, MPI_STATUS_IGNORE);
    MPI_Sendrecv(cell(n, 1), m, MPI_DOUBLE, down, tag, cell(0, 1), m, MPI_DOUBLE, up, tag, grid, MPI_STATUS_IGNORE);
    MPI_Sendrecv(cell(1, 1), 1, column, left, tag, cell(1, m + 1), 1, column, right, tag, grid, MPI_STATUS_IGNORE);
    MPI_Sendrecv(cell(1, m), 1, column, right, tag, cell(1, 0), 1, column, left, tag, grid, MPI_STATUS_IGNORE);
    own.step();
    whole.step();
  }

  // Sines only shrink, in every cell by the same factor. The bound: 8 roundings of at most 2^-53 per step.
  const double y = sine(1, 2 * all_rows + 1), x = sine(1, 2 * all_columns + 1),
               factor = std::pow(1 - 4 * r * (y * y + x * x), steps);
  long wrong[2] = {};  // cells that differ from one process, and from the solution
  for (int i = 1; i <= own.rows; ++i)
    for (int j = 1; j <= own.columns; ++j) {
      const double found = own.now[own.at(i, j)];
      const double known = factor * sine(first_row + i, all_rows) * sine(first_column + j, all_columns);
      wrong[0] += found != whole.now[whole.at(first_row + i, first_column + j)];
      wrong[1] += !(std::abs(found - known) <= 8 * (steps + 2) * 0x1p-53);
    }
  MPI_Allreduce(MPI_IN_PLACE, wrong, 2, MPI_LONG, MPI_SUM, grid);
  const bool is_right = wrong[0] == 0 && wrong[1] == 0;
  if (rank == 0)
    std::printf("%d x %d tiles\n%s: %ld of %d cells differ from one process\n", shape[0], shape[1],
                is_right ? "RIGHT" : "WRONG", wrong[0], all_rows * all_columns);
  MPI_Type_free(&column);
  MPI_Comm_free(&grid);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("heat_2d: standard output"), 1;
  return is_right ? 0 : 1;
}
