"""Problems, verifiers, the vLLM engine and the rollout loop. May import store and gating, never learner."""
