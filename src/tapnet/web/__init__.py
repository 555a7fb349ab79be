"""The HTTP service and its page, over `tapnet.inference`: `tapnet serve`, or `tapnet.web.app.create_app(settings)`.

A request passes `security` (host, origin, token, size), then a route of `task_routes`, `answer_routes` or `app`, which
uses the `store` (tasks and examples in a database) and the `engine` (networks in a pool of threads). Requests for
predictions that wait are answered together by the `batcher`. `static/` is the page.
"""
