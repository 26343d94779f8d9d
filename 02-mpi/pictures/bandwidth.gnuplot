# Draws a benchmark's table: bus bandwidth and median time over size, in place and out of place.
#
#   mpirun -n 4 all_reduce_perf --sweep > all_reduce.txt
#   gnuplot -e "table='all_reduce.txt'" bandwidth.gnuplot > all_reduce.svg
set terminal svg size 800,640 background 'white'
set datafile missing 'n/a'
set logscale x 2
set grid
set lmargin 12
set key top left
set multiplot layout 2,1
set format x '%.0b %BB'
set ylabel 'bus bandwidth, GB/s'
plot table using 1:8 with linespoints pointtype 7 pointsize 0.4 title 'out of place', \
  '' using 1:12 with linespoints pointtype 7 pointsize 0.4 title 'in place'
set logscale y
set xlabel 'size'
set ylabel 'median time, µs'
plot table using 1:14 with linespoints pointtype 7 pointsize 0.4 notitle, \
  '' using 1:17 with linespoints pointtype 7 pointsize 0.4 notitle
unset multiplot
