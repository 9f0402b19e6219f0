"""What an orchestrator decides about itself: when it leads, what time it is, when it ticks and whom it refuses."""
