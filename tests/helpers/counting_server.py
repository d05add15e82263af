"""A server that drafts and counts as llama.cpp's does, for tests of what is made of the counts."""

import json
import threading

from small_server import Asked, Reply, SmallServer

COUNTERS = {"num_drafts": 0, "num_draft_tokens": 1, "num_accepted_tokens": 2}


class Llama(SmallServer):
    """Rounds of γ draft tokens, of which one is accepted. honours: whether a depth in a request changes γ. takes:
    requests at once, more are refused. pause: seconds before an answer. token: of which its text consists."""

    def __init__(self, depth=4, honours=True, takes=64, pause=0.0, token=1):
        super().__init__(
            {"/completion": self.complete, "/metrics": self.metrics, "/props": Reply.json({"total_slots": 2})}
        )
        self.replies["/v1/models"] = Reply.json({"data": [{"id": "m", "owned_by": "llamacpp"}]})
        self.depth, self.honours, self.takes, self.pause, self.token = depth, honours, takes, pause, token
        self.counted, self.at_once, self.most_at_once, self.lock = [0, 0, 0], 0, 0, threading.Lock()

    def complete(self, asked: Asked) -> Reply:
        depth = asked.body.get("speculative.n_max", self.depth) if self.honours else self.depth
        tokens = asked.body["n_predict"]
        passes = tokens // 2 if depth else 0
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            if self.at_once > self.takes:
                self.at_once -= 1
                return Reply.json({"error": "slow down"}, 429)
            for place, count in enumerate((passes, passes * depth, passes)):
                self.counted[place] += count
        timings = {"predicted_ms": 10.0, "draft_n": passes * depth, "draft_n_accepted": passes}
        settings = {"speculative.types": "draft-eagle3" if depth else "none"}
        answer = {
            "content": "x" * tokens,
            "tokens": [self.token] * tokens,
            "tokens_predicted": tokens,
            "timings": timings,
        }
        answer |= {"generation_settings": settings}

        def parts():
            yield self.pause
            yield json.dumps(answer | {"stop": True, "stop_type": "limit"})
            with self.lock:
                self.at_once -= 1

        return Reply(parts())

    def metrics(self, _: Asked) -> Reply:
        names = {f"llamacpp:spec_decode_{name}_total": self.counted[place] for name, place in COUNTERS.items()}
        return Reply(["".join(f"{name} {count}\n" for name, count in names.items())])

    @property
    def answers(self):
        return [asked.body for asked in self.asked if asked.path == "/completion"]
