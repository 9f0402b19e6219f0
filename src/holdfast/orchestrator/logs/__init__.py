"""What jobs printed: the files that hold it, and how long they are kept."""
