"""Real models: weights from files, the few families that the lesson names, and text from them."""
