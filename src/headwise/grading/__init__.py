"""A learner's own attention, function by function: the skeleton, the marks, the hints."""
