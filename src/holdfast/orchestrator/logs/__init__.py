"""The output of jobs: the log files, and how long they are kept."""
