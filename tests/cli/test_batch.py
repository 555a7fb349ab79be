from types import SimpleNamespace

from tapnet.cli import parts


def test_time_left_does_not_count_the_start_of_a_cluster(monkeypatch, capsys):
    times = iter([100.0, 100.1, 140.0, 190.0])  # parts of 100, 100, 200 and 600 images, the first two by two workers
    monkeypatch.setattr(parts, "time", SimpleNamespace(monotonic=lambda: next(times)))
    log = parts.Log()
    log(100, 1000), log(200, 1000), log(400, 1000), log(1000, 1000)  # nothing is left after the last one
    assert capsys.readouterr().err == "400 of 1,000 images, 7.5 per second, 0:01:20 left\n"
