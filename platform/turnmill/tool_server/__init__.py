"""The tool server: verl-tool's HTTP API on any number of equal replicas, with all state in the trajectory store."""
