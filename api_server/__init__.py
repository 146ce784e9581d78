"""The HTTP front end: OpenAI's API in, EngineCoreRequests out, outputs back as text."""
