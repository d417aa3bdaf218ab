"""What watches a run from outside: metrics of every process, alerts, a dashboard, and experiment trackers."""
