"""What a model looks at, and whether a map of it can be believed: methods and a trust meter."""
