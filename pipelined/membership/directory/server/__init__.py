"""The server of an embedded directory: a state machine, its journal, and the endpoint that receives the requests."""
