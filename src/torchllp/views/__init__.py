"""Weak and strong views: pure functions of a batch and of random parameters that were drawn before."""
