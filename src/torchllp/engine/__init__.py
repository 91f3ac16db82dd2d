"""Training: one loop, and what it stands on."""
