"""The APIs of model servers that agents speak: a module each, from a body to a request and from answers to a body."""
