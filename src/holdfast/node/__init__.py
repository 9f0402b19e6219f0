"""The node: runs what it is told to run, within limits, and says what it holds. Decides for no one else."""
