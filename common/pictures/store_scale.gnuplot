# Draws what store_scale and torch_store_scale.py print, processor time of the server and bytes per rank over ranks:
#
#   gnuplot common/pictures/store_scale.gnuplot > store_scale.svg
set terminal svg size 800,360 background 'white'
set logscale
set grid
set key top left
set xlabel 'ranks'
set xrange [80:13000]
set ylabel "server's processor time until all have met, s"
folder = 'common/pictures/'
plot folder.'store_scale.txt' using 1:3 with linespoints pointtype 7 title 'store of multinode', \
  folder.'torch_store_scale.txt' using 1:3 with linespoints pointtype 7 title "PyTorch's TCPStore", \
  1e-4 * x with lines linecolor 'gray' title 'proportional to the ranks', \
  1e-6 * x**2 with lines linecolor 'black' title 'to their square'
