"""What replicas share: load as state that dies with its owner, placements, and who is in the fleet."""
