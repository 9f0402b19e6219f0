"""Container images: named, pulled, built and kept within bounds."""
