"""What measurements use: stores, processes of their own, CPU time."""
