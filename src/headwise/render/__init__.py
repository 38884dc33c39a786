"""Documents and reports as terminal text, HTML, JSON, SARIF and JUnit XML."""
