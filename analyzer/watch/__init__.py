"""The analyzer as a service: follows runs, analyses them, and shows them to Grafana, Prometheus and browsers."""
