"""How clients are reached: the HTTP server, WebSocket, SSE and long polling, all over the same gateway."""
