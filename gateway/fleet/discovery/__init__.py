"""Where workers come from when nobody lists them by hand: Kubernetes (pods, EndpointSlices) and DNS."""
