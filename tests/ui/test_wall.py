"""A class's guesses on the wall: one a phone and question, counted before anything is revealed, and then forgotten."""

import pytest
from elements import element
from playwright.sync_api import expect
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specviz.ui.routes.lessons import Lessons
from specviz.ui.routes.wall import MOST_BYTES, Wall, wall_routes

HOSTILE = "<img src=x onerror='window.hit = 1'>"
QUESTION = {"number": 1, "text": HOSTILE, "options": ["accepted", "rejected"]}


@pytest.fixture
def wall():
    """A client of a server of walls, an open wall's address, and its teacher's."""
    client = TestClient(Starlette(routes=wall_routes("/wall", Lessons(kind=Wall), "none")))
    made = client.post("/wall").json()
    return client, f"/wall/{made['code']}", f"/wall/{made['code']}?key={made['key']}"


def test_a_phone_has_one_vote_a_question_and_the_wall_shows_counts_alone(wall):
    client, room, teacher = wall
    first, second = (client.post(room).json()["seat"] for _ in range(2))
    assert client.post(teacher, json=QUESTION).status_code == 204 and client.get(room).json() == QUESTION
    ways = [(first, 1, 0, 204), (first, 1, 1, 409), (second, 0, 0, 409), (second, 1, 2, 409), ("nobody", 1, 0, 404)]
    for seat, number, option, status in ways:
        vote = {"seat": seat, "number": number, "option": option}
        assert client.post(room, json=vote).status_code == status, vote
    assert client.get(teacher).json() == {"seats": 2, "number": 1, "votes": [1, 0]}
    client.post(teacher, json=QUESTION | {"number": 2})
    assert client.get(teacher).json() == {"seats": 2, "number": 2, "votes": [0, 0]}


def test_only_the_key_asks_counts_and_ends_and_what_is_no_question_is_refused(wall):
    client, room, teacher = wall
    for method, body in (("POST", QUESTION), ("GET", None), ("DELETE", None)):
        assert client.request(method, f"{room}?key=guess", json=body).status_code == 404
    assert client.post(teacher, json={"number": "1"}).status_code == 422
    assert client.post(teacher, content=b" " * (MOST_BYTES + 1)).status_code == 413
    assert client.delete(teacher).status_code == 204
    assert client.get(teacher).status_code == client.post(room).status_code == 404 and client.get(room).json() is None


def opened_class(visit):
    """A page that asks a class, its run, and the address by which phones join."""
    page = visit()
    page.wait_for_function(f"() => {element('run')}.rounds.length")
    run = page.locator("specviz-run")
    run.locator("[part=present]").click()
    run.locator("[part=wall-open]").click()
    link = run.locator("[part=wall-link]")
    expect(link).to_contain_text("/join")
    address = link.get_attribute("href")
    page.keyboard.press("Escape")
    return page, run, address


def test_guesses_from_phones_stand_on_the_answers_before_the_verdict_and_end_with_the_page(visit, new_page):
    page, run, address = opened_class(visit)
    phones = [new_page(viewport={"width": 390, "height": 844}) for _ in range(2)]
    for phone in phones:
        phone.goto(address)
    question = run.locator("[part=question]")
    while "accepted or rejected" not in question.inner_text():
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(50)
    for phone, answer in zip(phones, ("accepted", "rejected")):
        expect(phone.locator("h1")).to_have_text(question.inner_text())
        phone.get_by_role("button", name=answer).click()
        expect(phone.get_by_role("button", name=answer)).to_have_attribute("aria-pressed", "true")
    for answer in ("accepted", "rejected"):
        expect(run.locator(f"[part=options] [data-value={answer}]")).to_have_attribute("data-votes", "1")
    phones[0].reload()
    expect(phones[0].get_by_role("button", name="accepted")).to_have_attribute("aria-pressed", "true")
    expect(phones[0].get_by_role("button", name="rejected")).to_be_disabled()
    expect(phones[0].get_by_role("status")).to_have_text("Your guess is in. Look at the screen.")
    expect(run.locator("[part=wall-open]")).to_have_text("Class: 2 of 2")
    page.keyboard.press("a")
    expect(phones[0].get_by_role("button")).to_have_count(0)
    page.keyboard.press("Escape")
    page.goto(address.partition("/join")[0])
    for phone in phones:
        expect(phone.locator("h1")).to_have_text("This class has ended.")


def test_a_class_sees_its_guesses_beside_the_verdict_with_those_that_came_last(visit, new_page):
    page, run, address = opened_class(visit)
    phone = new_page(viewport={"width": 390, "height": 844})
    phone.goto(address)
    question, answers = run.locator("[part=question]"), run.locator("[part=options] button")
    for guess in ("rejected", "accepted"):  # of the recording's first two draft tokens: the first is accepted
        while "accepted or rejected" not in question.inner_text():
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(50)
        phone.get_by_role("button", name=guess).click()
        expect(phone.get_by_role("button", name=guess)).to_have_attribute("aria-pressed", "true")
        run.get_by_role("button", name="Show it").click()
        expect(question).to_have_text("Shown without a guess.")
        expect(run.locator(f"[part=options] [data-value={guess}]")).to_have_attribute("data-votes", "1")
        truth = "accepted" if guess == "rejected" else "rejected"
        expect(run.locator("[part=options] [aria-current]")).to_have_attribute("data-value", truth)
        expect(answers).to_have_count(2)
        for answer in answers.all():
            expect(answer).to_be_disabled()
        page.wait_for_timeout(1500)  # and stay when the page looks again
        expect(run.locator(f"[part=options] [data-value={guess}]")).to_have_attribute("data-votes", "1")
        expect(run.locator("[part=wall-open]")).to_have_text("Class: 1 of 1")
    page.keyboard.press("ArrowRight")
    expect(run.locator("[part=options] [aria-current]")).to_have_count(0)


def test_a_teachers_page_says_that_its_class_has_ended_and_opens_another(visit):
    page = visit()
    page.wait_for_function(f"() => {element('run')}.rounds.length")
    run = page.locator("specviz-run")
    run.locator("[part=present]").click()
    run.locator("[part=wall-open]").click()
    expect(run.locator("[part=wall-link]")).to_contain_text("/join")
    first = run.locator("[part=wall-link]").get_attribute("href")
    expect(run.locator("[part=wall-open]")).to_have_text("Class: 0 of 0")
    page.evaluate("() => { window.kept = fetch; window.fetch = () => Promise.reject(new TypeError('no network')); }")
    page.wait_for_timeout(1500)
    expect(run.locator("[part=wall-open]")).to_have_text("Class: 0 of 0")
    page.evaluate(
        "() => { window.fetch = async () => new Response('', { status: 404 }); }"
    )  # the server was started anew
    expect(run.locator("[part=wall-open]")).to_have_text("Ask the class")
    expect(run.locator("[part=wall-told]")).to_have_text("This class has ended.")
    page.evaluate("() => { window.fetch = window.kept; }")
    page.keyboard.press("Escape")
    run.locator("[part=wall-open]").click()
    expect(run.locator("[part=wall-link]")).not_to_have_attribute("href", first)
    expect(run.locator("[part=wall-open]")).to_have_text("Class: 0 of 0")
    run.get_by_role("button", name="End the class").click()
    page.wait_for_timeout(2500)  # and nobody looks at a class that is none: the console stays empty
    expect(run.locator("[part=wall-open]")).to_have_text("Ask the class")
