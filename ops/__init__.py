"""Config, command line, launcher, server, benchmarks and labs. May import every room."""
