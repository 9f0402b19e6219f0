"""The HTTP API for people. Each handler is written once and knows no web framework.

    routes        the table of routes: method, path, handler, scope, status, size limit of the body
    call          the arguments and answers of a handler: ApiCall, Principal, Reply, EventStream
    authentication  who calls, by the token in the request
    context       what the handlers use: in production the leader and the store, in a test a virtual network
    jobs, arrays, checks, content, tokens, nodes, following, service     the handlers
    app           serves the table with Litestar, in an orchestrator
    dispatch      serves the same table without a framework, in `holdfast.testing.Network`

A handler is a coroutine function. Its first parameter is the `ApiCall`; the others are read from the request by their
names and types: parameters named in the path from the path, `data` from the body, all others from the query. The return
value is the answer; so is an `ApiError` that it raises. To add an endpoint, write its handler and a line in `routes`.

A handler awaits only what the context provides: a virtual network advances virtual time there, and has no event loop.
"""
