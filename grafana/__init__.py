"""Dashboards as code: `python -m grafana` writes grafana/dashboards/*.json anew."""
