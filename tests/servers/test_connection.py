"""Whatever is at the other end, a person learns what it is and what to do, beside the field that it concerns."""

import pathlib
import socket
import threading

import pytest
from small_server import Asked, Reply, SmallServer, serving

from specviz.records.errors import SpecvizError
from specviz.servers.address import address_of
from specviz.servers.answers import Ask
from specviz.servers.connection import Connection
from specviz.servers.server import Server

KEY = "sk-secret-4711"
CERTIFICATE = str(pathlib.Path(__file__).parent.parent / "data" / "self_signed.pem")
MODELS = Reply.json({"data": [{"id": "storybook", "owned_by": "vllm"}, {"id": "other", "owned_by": "vllm"}]})
CHUNK = {"choices": [{"text": " house", "token_ids": [857], "finish_reason": None}]}
LAST = {"choices": [{"text": ",", "token_ids": [12], "finish_reason": "length"}]}


def refusal(server: SmallServer, key: str = "", model: str = "", url: str = "") -> SpecvizError:
    """The error that asking it for an answer ends with."""
    with pytest.raises(SpecvizError) as raised:
        asked = Server(url or server.url, key, model)
        asked.connection._client.timeout = 0.5
        asked.run("Once", max_new_tokens=2)
    return raised.value


@pytest.mark.parametrize(
    ("replies", "field", "part"),
    [
        ({"/v1/models": Reply(["<html>hello"])}, "server", "with a web page"),
        ({"/v1/models": Reply(['{"data": [{"id"'])}, "server", "not JSON, or half of it"),
        ({}, "server", "no list of models at /v1/models"),
        ({"/v1/models": Reply([], 401)}, "server_key", "wants a key"),
        ({"/v1/models": Reply([], 307, {"Location": "http://elsewhere/"})}, "server", "http://elsewhere/"),
        (
            {"/v1/models": Reply.json({"error": {"message": "Loading model"}}, 503)},
            "server",
            "(status 503): Loading model",
        ),
        (
            {"/v1/models": MODELS, "/v1/completions": Reply.json({"detail": "slow down"}, 429)},
            "server",
            "(status 429): slow",
        ),
        (
            {"/v1/models": MODELS, "/v1/completions": Reply.json({"error": "context is full"}, 400)},
            "server",
            "(status 400): context is full",
        ),
        *(
            ({"/v1/models": MODELS, "/v1/completions": Reply.json({"error": said}, 400)}, field, said)
            for said, field in (
                ("The model nope does not exist", "server_model"),
                ("no model named nope", "server_model"),
                ("the model is overloaded", "server"),
            )
        ),
        ({"/v1/models": MODELS, "/v1/completions": Reply.events([CHUNK])}, "server", "before it was complete"),
        ({"/v1/models": MODELS, "/v1/completions": Reply(['data: {"choi'])}, "server", "half of it"),
        (
            {"/v1/models": MODELS, "/v1/completions": Reply.events([CHUNK, {"error": "engine died"}])},
            "server",
            "engine died",
        ),
        ({"/v1/models": MODELS, "/v1/completions": Reply(["data: {}\n\n", None])}, "server", "broke"),
        ({"/v1/models": MODELS, "/v1/completions": Reply(["data: {}\n\n", 5.0])}, "server", "has said nothing for 0.5"),
    ],
)
def test_a_server_that_fails_is_a_sentence_beside_the_field(replies, field, part):
    with serving(SmallServer(replies)) as server:
        error = refusal(server)
    assert error.field == field and part in str(error)


def test_a_name_that_the_server_does_not_have_comes_with_those_that_it_has():
    with serving(SmallServer({"/v1/models": MODELS})) as server:
        error = refusal(server, model="gpt-5")
    assert error.field == "server_model" and "storybook, other" in str(error)


def test_nothing_there_a_name_unknown_and_a_certificate_of_nobody_s():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = SmallServer({})
        assert "Nothing answers" in str(refusal(nobody, url=f"127.0.0.1:{free.getsockname()[1]}"))
    with serving(SmallServer({"/v1/models": MODELS}), CERTIFICATE) as server:
        assert "SSL_CERT_FILE" in str(refusal(server))
        assert "broke" in str(refusal(server, url=server.url.replace("https", "http")))
    with serving(SmallServer({"/v1/models": MODELS})) as server:
        assert "does not speak https" in str(refusal(server, url=server.url.replace("http", "https")))


def test_a_key_is_sent_and_written_nowhere():
    def echoes(asked: Asked) -> Reply:
        return Reply.json({"error": f"{asked.headers['authorization']} may not do this"}, 400)

    with serving(SmallServer({"/v1/models": MODELS, "/v1/completions": echoes})) as server:
        error = refusal(server, key=KEY)
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
        assert "may not do this" in str(error)
        assert KEY not in str(error) + repr(error.values) + repr(vars(Server(server.url, KEY)))
    with serving(SmallServer({"/v1/models": Reply([], 403)})) as server:
        assert refusal(server, key=KEY).field == "server_key"
    with pytest.raises(SpecvizError, match="A key consists of"):
        Server("localhost", "schlüssel\n")


@pytest.mark.parametrize("reply", [Reply([], 403), Reply([], 500), Reply(["<html>a portal"]), Reply([], 302)])
def test_what_a_proxy_does_not_pass_on_is_not_known_and_the_rest_is_asked(reply):
    """Its counters and its version only: whether a key is right the list of models has said."""
    replies = {"/v1/models": MODELS, "/metrics": reply, "/version": reply}
    with serving(SmallServer(replies | {"/v1/completions": Reply.events([CHUNK, LAST])})) as server:
        asked = Server(server.url)
        assert asked.about().version is None and asked.about().depth is None
        assert asked.run("Once", max_new_tokens=2).token_ids == (857, 12)


def test_counters_of_a_proxy_do_not_say_that_nothing_is_drafted():
    replies = {"/v1/models": MODELS, "/metrics": Reply(["gateway_requests_total 5\n"])}
    with serving(SmallServer(replies | {"/v1/completions": Reply.events([CHUNK, LAST])})) as server:
        about = Server(server.url).about()
    assert (about.drafter, about.depth) == (None, None)
    sglang = {"/v1/models": Reply.json({"data": [{"id": "m", "owned_by": "sglang"}]})}
    with serving(SmallServer(sglang)) as server:
        assert Server(server.url).about().drafter is None


def test_behind_one_address_the_chosen_model_s_engine_is_spoken_to():
    rows = [{"id": "a", "owned_by": "llamacpp"}, {"id": "b", "owned_by": "vllm"}]
    with serving(SmallServer({"/v1/models": Reply.json({"data": rows})})) as server:
        names = {model: Server(server.url, model=model).engine.name for model in ("a", "b", "")}
    assert names == {"a": "llama.cpp", "b": "vLLM", "": "llama.cpp"}


def test_of_llama_cpp_s_router_each_model_is_asked_by_its_name():
    """The router has settings of its own that say nothing, and hands on what names a model."""
    models = Reply.json({"data": [{"id": name, "owned_by": "llamacpp"} for name in ("a", "b")]})
    own = {"default_generation_settings": {"params": None, "n_ctx": 0}, "build_info": "b1"}
    end = {"content": "x", "tokens": [5], "stop": True, "stop_type": "limit", "tokens_predicted": 1}
    replies = {"/v1/models": models, "/props?model=b": Reply.json(own), "/completion": Reply.json(end)}
    with serving(SmallServer(replies)) as server:
        asked = Server(server.url, model="b")
        about, answer = asked.about(), asked.answer(Ask("Once", 1))
        paths = {one.path for one in server.asked}
    assert (about.version, about.context, answer.ids) == ("b1", None, (5,))
    assert server.asked[-1].body["model"] == "b" and {"/slots?model=b", "/props?model=b"} <= paths


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ALL_PROXY", "socks5://localhost:1"), ("SSL_CERT_FILE", "/no/such.pem"), ("HTTP_PROXY", "http://[::1")],
)
def test_settings_of_this_machine_that_cannot_be_used_are_a_sentence(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SpecvizError, match="settings for proxies and certificates cannot be used") as raised:
        Server("http://127.0.0.1:9")
    assert raised.value.field == "server"


def test_an_error_in_place_of_an_answer_is_told():
    said = Reply.json({"error": {"message": "the engine died"}})
    replies = {"/v1/models": MODELS, "/v1/completions": said}
    with serving(SmallServer(replies)) as server, pytest.raises(SpecvizError, match="the engine died"):
        Server(server.url).answer(Ask("Once"))


def test_log_probabilities_of_any_shape_are_no_error():
    chunks = [{"choices": [{"text": "a", "token_ids": [1], "logprobs": [-0.5], "finish_reason": "length"}]}]
    with serving(SmallServer({"/v1/models": MODELS, "/v1/completions": Reply.events(chunks)})) as server:
        assert Server(server.url).run("Once", max_new_tokens=1).token_ids == (1,)


@pytest.mark.parametrize("reason", ["content_filter", "abort", "stop", "length"])
def test_an_answer_that_a_filter_or_an_abort_ends_is_complete(reason):
    chunks = [{"choices": [{"text": "a", "token_ids": [1], "finish_reason": reason}]}]
    with serving(SmallServer({"/v1/models": MODELS, "/v1/completions": Reply.events(chunks)})) as server:
        run = Server(server.url).run("Once", max_new_tokens=1)
    reasons = {"stop": "eos", "length": "length"}
    assert run.token_ids == (1,) and run.stop_reason == reasons.get(reason, "stopped")


@pytest.mark.parametrize("owner", ["llamacpp", "vllm", "sglang", "library", ["x"]])
@pytest.mark.parametrize("said", ['"ok"', "[1]", "7", "null", "[" * 100_000, '{"default_generation_settings": "x"}'])
def test_what_a_server_says_of_itself_in_another_form_is_not_known(owner, said):
    paths = "/props", "/slots", "/version", "/api/version", "/server_info", "/get_server_info"
    models = Reply.json({"data": [{"id": "m", "owned_by": owner}]})
    with serving(SmallServer({"/v1/models": models} | dict.fromkeys(paths, Reply([said])))) as server:
        assert Server(server.url).about().context is None


def test_settings_and_times_of_llama_cpp_in_another_form_are_not_known():
    props = {"default_generation_settings": {"params": {"temperature": None, "top_k": 3, "top_p": "high"}}}
    end = {"content": "x", "tokens": [5], "stop": True, "stop_type": "none", "timings": "n/a"}
    replies = {"/v1/models": Reply.json({"data": [{"id": "m", "owned_by": "llamacpp"}]}), "/props": Reply.json(props)}
    with serving(SmallServer(replies | {"/completion": Reply.json(end)})) as server:
        asked = Server(server.url)
        assert asked.about().sampling == {"top_k": 3.0, "samplers": None} and asked.answer(Ask("Once", 1)).ids == (5,)


def test_a_stream_may_repeat_itself_beyond_the_longest_answer(monkeypatch):
    """SGLang's events hold all of the answer so far."""
    monkeypatch.setattr("specviz.servers.connection.MOST_BYTES", 4000)
    text = "word " * 40
    chunks = [{"choices": [{"text": text, "token_ids": [1]}]} for _ in range(30)]
    chunks.append({"choices": [{"text": "", "finish_reason": "stop"}]})
    with serving(SmallServer({"/v1/models": MODELS, "/v1/completions": Reply.events(chunks)})) as server:
        assert len(Server(server.url).run("Once", max_new_tokens=30).token_ids) == 30


def test_an_answer_without_end_is_not_read_to_its_end():
    endless = Reply("data: " + "x" * 1_000_000 for _ in iter(int, 1))
    with serving(SmallServer({"/v1/models": MODELS, "/v1/completions": endless})) as server:
        assert "is longer than" in str(refusal(server))


def test_leaving_early_ends_the_request():
    chunks = Reply([f"data: {line}\n\n" for line in ['{"choices": [{"text": "a", "token_ids": [1]}]}'] * 3] + [30.0])
    with serving(SmallServer({"/v1/models": MODELS, "/v1/completions": chunks})) as server:
        stream = Server(server.url).engine.stream(Ask("Once"))
        assert next(stream).ids == (1,)
        stream.close()


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("localhost:8080", "http://localhost:8080"),
        (" http://gpu:8000/v1/ ", "http://gpu:8000"),
        ("https://host/proxy/v1/chat/completions", "https://host/proxy"),
        ("http://[::1]:8080/metrics", "http://[::1]:8080"),
    ],
)
def test_an_address_is_taken_as_people_copy_it(text, root):
    assert address_of(text).shown == root


@pytest.mark.parametrize(
    "text",
    [
        *("", "ftp://host", "http://", "http://user:pass@host", "http://ho st", "file:///etc/passwd"),
        *("http://a..b", "http://.", f"http://{'a' * 64}.b", "http://xn--a"),
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(SpecvizError) as raised:
        address_of(text)
    assert raised.value.field == "server"


def test_a_public_page_asks_only_the_servers_that_are_listed(monkeypatch):
    listed = ("http://gpu.example:8000/v1", "127.0.0.1:8080")
    addresses = {"gpu.example": "8.8.8.8"}

    def looked_up(host, *_, **__):
        return [(2, 1, 6, "", (addresses[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    assert address_of("127.0.0.1:8080", listed).pinned is None
    address = address_of("gpu.example:8000", listed)
    assert (address.pinned, address.at("/version").host, address.shown) == (
        "8.8.8.8",
        "8.8.8.8",
        "http://gpu.example:8000",
    )
    assert Connection(address)._client.headers["host"] == "gpu.example:8000"
    for other in ("gpu.example:8001", "http://169.254.169.254", "localhost:8080"):
        with pytest.raises(SpecvizError, match="that its owner lists"):
            address_of(other, listed)
    addresses["gpu.example"] = "169.254.169.254"
    with pytest.raises(SpecvizError, match="does not lead to a public address"):
        address_of("gpu.example:8000", listed)
    with pytest.raises(SpecvizError, match="none"):
        address_of("localhost", ())


def test_a_kept_connection_that_the_server_ends_just_then_is_no_error():
    """The next request on it gets no answer; another one, on a connection of its own, does."""
    models = b'{"data": []}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(models), models)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(2):
                with listening.accept()[0] as connected:
                    connected.recv(4096)
                    connected.sendall(answer)
                    connected.recv(4096)  # and hangs up

        threading.Thread(target=serve, daemon=True).start()
        connection = Connection(address_of(f"127.0.0.1:{listening.getsockname()[1]}"))
        assert [connection.json("/v1/models") for _ in range(2)] == [{"data": []}] * 2


@pytest.mark.parametrize("address", [8080, None])
def test_what_is_no_text_is_no_address(address):
    with pytest.raises(SpecvizError, match="Enter the address of a server"):
        Server(address)
