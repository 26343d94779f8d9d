# An SVG picture with the colours for a light and for a dark page, on standard output.
set terminal svg size 800,640 font 'sans-serif,14'
style = '<style>svg{background:#fff;font:14px sans-serif} ' . \
  '@media (prefers-color-scheme:dark){svg{background:#1e1e1e} ' . \
  '[stroke="black"],[color="black"]{stroke:#ddd;color:#ddd} [fill="black"]{fill:#ddd;stroke:none}}</style>'
# without the attributes that gnuplot repeats in each element, empty groups, and digits below a tenth of a pixel
set output "| sed -zE -e 's/ (stroke-line[a-z]+|font-family|font-size|class)=\"[^\"]*\"//g; s/\\t| +(>)/\\1/g' " . \
  "-e 's/([0-9][.][0-9])[0-9]([ ,)])/\\1\\2/g' -e 's|<g [^>]*>\\n</g>\\n||g; s|<filter.*</filter>\\n||; s|<title>.*</desc>\\n|" . style . "|'"
set style line 1 linecolor rgb '#0072b2' linewidth 2 pointtype 7 pointsize 0.5
set style line 2 linecolor rgb '#d55e00' linewidth 2 pointtype 7 pointsize 0.5
set datafile missing 'n/a'
set logscale x 2
set format x '%.0b %BB'
set xtics 8
set mxtics 1
set mytics 1
set grid
set key top left
