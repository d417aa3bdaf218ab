"""Python programs that the policy wrote: run in a sandbox, judged outside it."""
