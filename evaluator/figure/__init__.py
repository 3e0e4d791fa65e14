"""From sums of windows to the figure, its error and its records."""
