"""What agents act on during one episode."""
