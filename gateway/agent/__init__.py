"""The process beside an engine: brings it into the fleet, follows its events, takes it out in order."""
