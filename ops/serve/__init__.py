"""`verge serve`: the live problem-state page, the HTTP API and the Prometheus metrics of one run. It only reads."""
