"""From token counts to windows, and to batches of windows: what there is to score."""
