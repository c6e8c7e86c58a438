"""Pure maths of READ/WRITE paths: latency, duality and path quality. No models, no files."""
