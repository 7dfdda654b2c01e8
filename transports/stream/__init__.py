"""Authenticated connections and the frames on them, for ranks (`tcp`) and endpoints (`rpc`) alike.

sockets       time limits and options; listen, accept, connect
acceptor      admits callers, by the handshake: both ends prove that they hold the shared key
connection    then owns the socket: frames go out by the writer, come in by the reader, and it ends once
incoming      bodies on their way into the memory of a receive

What the frames mean is the owner's: `transports.tcp.peer`, or `transports.rpc.tcp.connection`.
"""
