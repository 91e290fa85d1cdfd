"""What all layers use: one error format, random numbers, progress bars, files, and small operations over chains."""
