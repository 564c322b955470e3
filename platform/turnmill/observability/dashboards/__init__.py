"""The boards of Grafana, as data; `python -m turnmill.observability.dashboards FOLDER` writes them as JSON."""
