"""The three ways from an engine to the Python client, and which of them is used when.

    transport_link      what a link does for the receiver, and how it ends
    websocket_link      frames in both directions
    event_stream_link   frames by SSE, acknowledgements and refusals by POST
    poll_link           frames by long polling, acknowledgements by POST and by the cursor of the next request, refusals by POST
    transport_ladder    which transport is tried next: WebSocket, SSE, polling, and back

A link is one connection and knows nothing of messages: it turns what arrives into the frames of PROTOCOL.md. The `Session`
(`engine.client.protocol`) is one for all links, so cursor, duplicates and what is to be acknowledged outlive a switch of transports.
`engine.client.receiver` opens and closes links; nobody else does.
"""
