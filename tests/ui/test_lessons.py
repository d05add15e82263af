"""A class's answers: without names, bounded, forgotten."""

import csv

import pytest
from playwright.sync_api import expect
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.records.words import words
from specviz.ui.routes.lessons import LONGEST, MOST_BYTES, MOST_LESSONS, MOST_SEATS, UNREAD, Lessons, lesson_routes
from specviz.views.quiz import CHOICES, QUESTIONS

#: The right answers to one question, in either form.
RIGHT = [words()(f"quiz.law_{key}") for key in ("threshold", "from_p")]


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def class_room(clock):
    """A client of a server of lessons, and the lessons themselves."""
    lessons = Lessons(clock)
    return TestClient(Starlette(routes=lesson_routes("/lessons", lessons))), lessons


def opened(client) -> tuple[str, str]:
    made = client.post("/lessons").json()
    return f"/lessons/{made['code']}", f"/lessons/{made['code']}?key={made['key']}"


def answers(seat: str, **changes) -> dict:
    given = {"form": 0, "chosen": [0, 1, 2, 0, 1], "seconds": [4.5, 3, 10, 8.25, 0]}
    return {"seat": seat, "phase": "before"} | given | changes


def test_the_key_reads_each_phones_last_answers_and_no_name(class_room):
    client, _ = class_room
    lesson, told = opened(client)
    first, second, _ = (client.post(lesson).json()["seat"] for _ in range(3))
    for sent in (answers(first), answers(first, chosen=[2] * 5), answers(second, phase="after", form=1)):
        assert client.post(lesson, json=sent).status_code == 204
    seconds = [4.5, 3, 10, 8.25, 0]
    assert client.get(told).json() == [
        {"before": {"form": 0, "chosen": [2] * 5, "seconds": seconds}},
        {"after": {"form": 1, "chosen": [0, 1, 2, 0, 1], "seconds": seconds}},
        {},
    ]


def test_only_the_key_reads_or_ends_a_lesson_and_then_nothing_is_left(class_room):
    client, lessons = class_room
    lesson, counts = opened(client)
    for asked in (lesson, f"{lesson}?key=", f"{lesson}?key=ä", "/lessons/none?key=x"):
        assert client.get(asked).status_code == client.delete(asked).status_code == 404
    assert client.delete(counts).status_code == 204 and not lessons.lessons
    assert client.get(counts).status_code == client.post(lesson).status_code == 404


@pytest.mark.parametrize("looking, lasts", [(False, UNREAD), (True, LONGEST)])
def test_a_lesson_ends_by_itself(class_room, clock, looking, lasts):
    client, lessons = class_room
    _, counts = opened(client)
    while clock.now + UNREAD / 2 < lasts:
        clock.now += UNREAD / 2
        assert not looking or client.get(counts).status_code == 200
    clock.now = lasts + 1
    assert client.get(counts).status_code == 404 and not lessons.lessons


@pytest.mark.parametrize(
    "body, status",
    [
        ({"seat": "nobody's"}, 404),
        ({"phase": "later"}, 422),
        ({"form": 2}, 422),
        ({"chosen": [0] * 4}, 422),
        ({"chosen": [0, 0, 0, 0, 3]}, 422),
        ({"chosen": [0, 0, 0, 0, True]}, 422),
        ({"seconds": [0.5] * 4}, 422),
        ({"seconds": [0, 0, 0, 0, -1]}, 422),
        ({"name": "Ada"}, 422),
        ({"seat": "x" * MOST_BYTES}, 413),
    ],
)
def test_what_is_no_answer_changes_nothing(class_room, body, status):
    client, _ = class_room
    lesson, counts = opened(client)
    assert client.post(lesson, json=answers(client.post(lesson).json()["seat"]) | body).status_code == status
    assert client.get(counts).json() == [{}]


def test_a_flood_takes_no_memory_and_no_lesson_away(class_room, clock):
    client, lessons = class_room
    lesson, counts = opened(client)
    statuses = {client.post(path).status_code for _ in range(3 * MOST_SEATS) for path in ("/lessons", lesson)}
    assert statuses == {200, 429} and len(lessons.lessons) < MOST_LESSONS
    for _ in range(20 * MOST_LESSONS):
        clock.now += 1
        client.get(counts)
        client.post("/lessons")
        client.post(lesson)
    assert len(lessons.lessons) <= MOST_LESSONS
    assert len(client.get(counts).json()) == MOST_SEATS


def test_a_class_answers_on_its_phones_and_the_teacher_sees_how_many_were_right(visit, new_page):
    teacher = visit()
    teacher.locator("specviz-quiz [part=opener]").click()
    teacher.locator("specviz-quiz [part=teach]").click()
    link = teacher.locator("specviz-quiz a").get_attribute("href")
    # The server of this test has no name that a phone could follow.
    expect(teacher.locator("specviz-quiz [part=dialog]")).to_contain_text("works only on this computer")
    expect(teacher.locator("specviz-quiz [part=qr]")).to_have_count(0)
    # A seat that comes late does not take the questions from under a finger.
    late = (
        "const ask = fetch;"
        "window.fetch = async (...all) => { await new Promise((go) => setTimeout(go, 700)); return ask(...all); };"
    )
    phone = new_page(viewport={"width": 390, "height": 844}, script=late)
    phone.goto(link)
    for button, seen in (("begin", "before"), ("again", "after")):
        phone.locator(f"specviz-quiz [part={button}]").click(timeout=60_000)
        if seen == "before":  # the phone loses its network, and has it again
            phone.evaluate("() => { window.kept = fetch; window.fetch = () => Promise.reject(new TypeError()); }")
        for _ in QUESTIONS:
            # The last of two taps counts.
            options = phone.locator("specviz-quiz .option")
            taken = next((i for i, text in enumerate(options.all_text_contents()) if text in RIGHT), 0)
            options.nth((taken + 1) % CHOICES).click()
            options.nth(taken).click()
            phone.locator("specviz-quiz [part=next], specviz-quiz [part=done]").click()
        if seen == "before":
            expect(phone.locator("specviz-quiz [part=note]")).to_contain_text("not been sent yet")
            phone.evaluate("() => { window.fetch = window.kept; }")
        expect(phone.locator("specviz-quiz [part=note]")).to_contain_text("counted")
        law = teacher.locator("specviz-quiz [data-question=law]")
        expect(law).to_contain_text(f"{seen}: 1 of 1 right")
    expect(teacher.locator("specviz-quiz [part=seats]")).to_have_text("1 phone")
    with teacher.expect_download() as saved:
        teacher.locator("specviz-quiz [part=save]").click()
    heads, *rows = csv.reader(saved.value.path().open(encoding="utf-8"))
    assert heads == ["form", "item", "before", "after", "seconds", "person"] and [row[1] for row in rows] == [
        *QUESTIONS
    ]
    assert rows[2][2:4] == ["1", "1"] and {row[5] for row in rows} == {link.rpartition("lesson=")[2] + "-1"}
    teacher.locator("specviz-quiz [part=end]").click()
    phone.goto(link)
    expect(phone.locator("specviz-quiz [part=total]")).to_contain_text("of 5 right before")
    # Who clears the answers would take another seat.
    expect(phone.locator("specviz-quiz [part=forget]")).to_have_count(0)
