"""What people start: the command line and its commands, the demo page, replays, SimulEval agents, converters."""
