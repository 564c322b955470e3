"""Commands for jobs in a Kubernetes cluster; they alone import the `kubernetes` client."""
