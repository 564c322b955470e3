"""Patches of verl, Ray, vLLM and TransferQueue, each made for one version."""
