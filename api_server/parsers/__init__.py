"""What a model writes, taken apart: thoughts, the answer's text, tool calls.

Each format is a *grammar*: a generator that reads a `Source` from left to right, yields what it is sure of, and
yields None where it cannot go on without more text. So a grammar reads like a description of the format, and how
the text was cut into pieces on its way cannot matter. All grammars keep these rules:

- Nothing is held back that cannot be part of a marker, of white space before a marker, or of a call's head.
- What begins like a call and turns out to be none is text, the marker included.
- A call has begun when its name and the beginning of its arguments are known; from then on it stays a call. Its
  arguments are passed on as they come, as the model wrote them, apart from what JSON forbids inside strings.
- White space next to a call belongs to the call. No other text is lost, but for a call that the length limit cuts
  off before it has begun.
"""
