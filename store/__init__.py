"""Redis holds facts: problems, tickets, rollout groups, weight manifests, dynamics, heartbeats."""
