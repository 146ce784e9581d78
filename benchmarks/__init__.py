"""Measures servers from outside: `shoal bench serve` loads any OpenAI-compatible endpoint.

Pure parts: schedule (when requests start), workload (what they say), sse and answer (what comes back), summary,
comparison and report (what it means). Shells: client (HTTP), runner (the loops), session (a whole measurement), cli.
"""
