"""The HTTP API for people. Each handler is written once and knows no web framework.

    routes        the one table: method, path, handler, scope, status, limit of the body
    call          what a handler gets and gives: ApiCall, Principal, Reply, EventStream
    context       what stands behind the handlers; in production the leader and the store, in a test a virtual network
    jobs, arrays, checks, content, tokens, nodes, following, service     the handlers
    app           mounts the table on Litestar: what an orchestrator serves
    dispatch      answers a request by the same table without a framework: what `holdfast.testing.Network` serves

A handler is a coroutine function. Its first parameter is the `ApiCall`; the others are read from the request by their
names and types: one that the path names from the path, `data` from the body, all others from the query. What it returns
is the answer, an `ApiError` that it raises is one too. To add an endpoint, write its handler and its line in the table.

A handler awaits nothing but what the context gives it: a virtual network lets virtual time pass there, and has no event
loop.
"""
