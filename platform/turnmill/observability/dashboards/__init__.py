"""Grafana dashboards as data; `python -m turnmill.observability.dashboards FOLDER` writes them as JSON."""
