"""Ways to compute one and the same attention; ``dispatch`` chooses among them and says why."""
