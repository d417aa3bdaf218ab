"""Built-in problem families, generated from a seed: countdown and arithmetic."""
