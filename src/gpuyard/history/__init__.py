"""Who had which GPU from when to when, and what that amounts to."""
