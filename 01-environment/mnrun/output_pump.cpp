// output_pump
