"""The command line. Nothing here imports torch: targets run in a child process."""
