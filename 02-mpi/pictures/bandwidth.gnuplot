# Plots a benchmark's table: bus bandwidth and median time over size, in place and out of place.
#
#   mpirun -n 4 all_reduce_perf --sweep > all_reduce.txt
#   gnuplot -e "table='all_reduce.txt'" pictures/bandwidth.gnuplot > bandwidth.svg
load system('dirname ' . ARG0) . '/light_and_dark.gnuplot'
set lmargin 12
set multiplot layout 2,1
set ylabel 'bus bandwidth, GB/s'
plot table using 1:8 with linespoints linestyle 1 title 'out of place', \
  '' using 1:12 with linespoints linestyle 2 title 'in place'
set logscale y
set xlabel 'size'
set ylabel 'median time, µs'
plot table using 1:14 with lines linestyle 1 notitle, '' using 1:17 with lines linestyle 2 notitle
unset multiplot
set output # waits for sed
