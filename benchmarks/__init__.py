"""Load generator and micro-benches."""
