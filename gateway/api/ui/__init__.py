"""The live page on the admin port: for the first five minutes, and for those without Grafana."""
