# Draws the CSV of a benchmark: bus bandwidth and median time over size, in place and out of place.
#
#   mpirun -n 4 all_reduce_perf --sweep --csv all_reduce.csv
#   gnuplot -e "csv='all_reduce.csv'" bandwidth.gnuplot > all_reduce.svg
set terminal svg size 800,640 background 'white'
set datafile separator ','
set datafile missing NaN
set logscale x 2
set grid
set lmargin 12
set key top left
set multiplot layout 2,1
set format x '%.0b %BB'
set ylabel 'bus bandwidth, GB/s'
plot for [place in "false true"] csv using (strcol('in_place') eq place ? column('size_bytes') : NaN):'busbw_gb_per_s' \
  with linespoints pointtype 7 pointsize 0.4 title (place eq 'true' ? 'in place' : 'out of place')
set logscale y
set xlabel 'size'
set ylabel 'median time, µs'
plot for [place in "false true"] csv using (strcol('in_place') eq place ? column('size_bytes') : NaN):'median_us' \
  with linespoints pointtype 7 pointsize 0.4 notitle
unset multiplot
