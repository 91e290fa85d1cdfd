"""What all layers use: one error format, random numbers, progress bars, files, optional libraries, small operations."""
