"""The streaming service: text in and translated words out over WebSockets, for many at once, and rooms."""
