"""The computations of labs whose words and charts fill a file of their own; same names."""
