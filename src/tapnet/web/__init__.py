"""The HTTP service and its page, over `tapnet.inference`: `tapnet serve`, or `tapnet.web.app.create_app(settings)`.

A request passes `protocol` (time), `security` (host, origin, token, rate, size), one of the routers (`task_routes`,
`answer_routes`, `file_routes`, `server_routes`), then the `store` (tasks and examples in a database) and the `engine`
(networks in a pool of threads). Requests for predictions wait for each other in `gathering`; `answering` makes the
predictions of many at a time, and `batching` runs the network. `static/` is the page.
"""
