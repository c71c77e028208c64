"""What the trainer and its decoders say to each other, over real pipes."""

import os

import pytest

from fulltilt.feed.images.wire import Report, Reports, Task, receive_task, send_report, send_task, tasks_waiting


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_tasks_are_taken_one_by_one_until_the_pipe_is_closed(pipe):
    tasks = [Task(1, 2, 3, 4, number) for number in range(3)]
    for task in tasks:
        send_task(pipe[1], task)
    assert tasks_waiting(pipe[0]) == 3
    assert [receive_task(pipe[0]) for _ in tasks] == tasks
    os.close(pipe[1])
    assert receive_task(pipe[0]) is None


def test_reports_come_all_at_once(pipe):
    reports = [Report(1, 2, 3, 4, 5), Report(2, 0, 1, 7, 1, "größer als das Bild"), Report(1, 2, 3, 9, 5)]
    for report in reports:
        send_report(pipe[1], report)
    assert Reports(pipe[0]).receive() == reports


def test_a_report_that_came_in_part_is_heard_when_the_rest_is_there(pipe):
    for number in (1, 2):
        send_report(pipe[1], Report(number, 0, 0, 0, 1, "cut off"))
    data = os.read(pipe[0], 1 << 16)
    reports = Reports(pipe[0])
    heard = []
    for at in range(0, len(data), 5):
        os.write(pipe[1], data[at : at + 5])
        heard.append([report.worker for report in reports.receive()])
    assert [number for some in heard for number in some] == [1, 2]
    assert heard[0] == []


def test_nobody_left_to_report_is_not_nothing_to_report(pipe):
    os.close(pipe[1])
    assert Reports(pipe[0]).receive() is None
