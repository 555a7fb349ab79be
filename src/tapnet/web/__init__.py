"""The HTTP service and its page, over `tapnet.inference`: `tapnet serve`, or `tapnet.web.app.create_app(settings)`.

A request passes `security` (host, origin, token, rate, size), one of the routers (`task_routes`, `answer_routes`,
`server_routes`), then the `store` (tasks and examples in a database) and the `engine` (networks in a pool of threads);
`static/` is the page.
"""
