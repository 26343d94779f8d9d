# Plots what ping_pong prints: the time of one message over its size, measured and fitted.
#
#   mpirun -n 2 ./ping_pong > ping_pong.txt
#   gnuplot -e "table='ping_pong.txt'" pictures/ping_pong.gnuplot > ping_pong.svg
load system('dirname ' . ARG0) . '/light_and_dark.gnuplot'
set logscale y
set xlabel 'size of the message'
set ylabel 'time one way, µs'
plot table using 1:2 with points linestyle 1 pointsize 0.8 title 'measured', \
  '' using 1:3 with lines linestyle 2 title 'fitted: latency + size / bandwidth'
set output # waits for sed
