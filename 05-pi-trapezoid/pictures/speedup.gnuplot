# Draws the table of scaling.sh, and what Amdahl's law makes of its first two rows. The colours follow the browser.
#
#   bash scaling.sh > scaling.txt
#   gnuplot -e "table='scaling.txt'" pictures/speedup.gnuplot > speedup.svg
style = '<style>@media (prefers-color-scheme:dark){text{fill:#e6edf3}[color=black]{color:#e6edf3}' . \
  '[stroke=black]{stroke:#e6edf3}}</style>'
set output "| sed '0,/<desc>/s|<desc>|".style."<desc>|;/^$/d'"
set terminal svg size 800,400 dynamic font 'sans-serif,13'
strong = "< sed -n '/^strong/,/^weak/s/^ .*[0-9]/&/p' ".table
weak = "< sed -n '/^weak/,$s/^ .*[0-9]/&/p' ".table
stats strong using 3 every ::1::1 nooutput name 'two' # of two processes
serial = 2 / two_min - 1
s = serial > 0 ? serial : 0
amdahl(p, s) = 1 / (s + (1 - s) / p)
set logscale xy 2
set xrange [1:64]
set yrange [1:64]
set xlabel 'processes, each on a core of its own'
set ylabel 'speed-up'
set grid linewidth 0.5
set key top left reverse Left
plot x with lines linecolor '#8b949e' title 'ideal', \
  amdahl(x, s) with lines dashtype 2 linewidth 1.5 linecolor '#1f77b4' \
    title sprintf("model: %.1f %% of the run is serial, as two processes show", 100 * s), \
  amdahl(x, 0.05) with lines dashtype 3 linewidth 1.5 linecolor '#c2410c' title 'model: 5 % of the run is serial', \
  strong using 1:3 with points pointtype 7 pointsize 1 linecolor '#1f77b4' title 'measured, strong scaling', \
  weak using 1:3 with points pointtype 6 pointsize 1.6 linecolor '#c2410c' title 'measured, weak scaling'
set output
