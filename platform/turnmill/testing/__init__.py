"""Fakes and scripted policies for tests; nothing else imports this."""
