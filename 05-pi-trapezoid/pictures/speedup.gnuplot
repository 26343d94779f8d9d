# Draws the table of scaling.sh: speed-up and efficiency over the number of processes. The colours follow the browser.
#
#   bash scaling.sh > scaling.txt
#   gnuplot -e "table='scaling.txt'" pictures/speedup.gnuplot > speedup.svg
style = '<style>text { fill: #1f2328 } @media (prefers-color-scheme: dark) '. \
  '{ text { fill: #e6edf3 } [color=black] { color: #e6edf3 } [stroke=black] { stroke: #e6edf3 } }</style>'
set output "| sed '0,/<desc>/s|<desc>|".style."<desc>|;/^$/d'"
set terminal svg size 800,340 dynamic font 'sans-serif,13'
strong = "< sed -n '/^strong/,/^weak/s/^ .*[0-9]/&/p' ".table
weak = "< sed -n '/^weak/,$s/^ .*[0-9]/&/p' ".table
set multiplot layout 1,2
set logscale x 2
set samples 2 # the ideal is a straight line
set xlabel 'processes'
set grid linewidth 0.5
set key top left reverse Left
set title 'speed-up'
set logscale y 2
plot x with lines dashtype 2 linecolor '#8b949e' title 'ideal', \
  strong using 1:3 with linespoints pointtype 7 pointsize 1 linecolor '#1f77b4' title 'strong scaling', \
  weak using 1:3 with linespoints pointtype 5 pointsize 0.4 linecolor '#e6852c' title 'weak scaling'
unset logscale y
set title 'efficiency, %'
set yrange [0:105]
set key bottom left
plot strong using 1:4 with linespoints pointtype 7 pointsize 1 linecolor '#1f77b4' title 'strong scaling', \
  weak using 1:4 with linespoints pointtype 5 pointsize 0.4 linecolor '#e6852c' title 'weak scaling'
unset multiplot
