"""Pictures of what a run did."""
