"""`make demo`: untrusted code from a scripted model repairs a real repository inside a sandbox."""
