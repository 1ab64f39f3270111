"""What was measured: on the terminal, in RESULTS.md and results.csv, and as plots."""
