"""A stream that can change its instance: SSE events in, the client's bytes out. No I/O, no clock.

While all goes well this is a `StreamMeter` that cuts out the token ids that we asked for and notes them beside the text
(under 2 us an event). When the instance is lost, `turn` goes back to the last resume point (`access/transcript.py`) and
`body` is the request for the rest, to `/v1/completions`. What comes back is fed in like before, and leaves in the
client's dialect: one id, one created and model, the role once, no text twice and none missing, usage counted once.

It may turn more than once. `refusal` says why it cannot; then the stream ends with an error that says so.
"""

import msgspec
from msgspec import UNSET

from isochrone.access import dialect
from isochrone.access.contract import Contract, Promise
from isochrone.access.dialect import (
    DONE,
    END,
    LAST_FIELD_END,
    NO_IDS,
    Choice,
    Event,
    as_shown,
    decode_event,
    decode_tokenized,
    envelope_of,
    inside,
    is_broken,
    seen_in,
    token_event,
    usage_event,
    without_ids,
)  # fmt: skip
from isochrone.access.sse import StreamMeter, fields_of
from isochrone.access.transcript import Point, Transcript, count
from isochrone.access.usage import CachedTokens, UsageFields

PROMPT_IDS_BYTES_MAX = 256 * 1024
"""Longest list of prompt ids, as JSON, that is kept; a longer one is asked for again at `/tokenize` when needed."""
PROMPT_IDS = b'"prompt_token_ids":['
ONLY_IDS = b'"delta":{}'
"""Where an engine's parser swallows a token, vLLM sends an event without text, because ids were asked for."""
NEVER = b"\0"
"""No event begins with it: stands for the start of events until it is known."""


class Splice(StreamMeter):
    """One answer, whichever instances it comes from."""

    __slots__ = (
        "_after", "_base_tokens", "_contract", "_dialect", "_dropping", "_envelope", "_log", "_prompt_ids", "_start",
        "_tail", "_transcript", "continued", "prompt_tokens", "why_not",
    )  # fmt: skip

    def __init__(self, contract: Contract, cut_usage: bool) -> None:
        super().__init__(cut_usage)
        self._contract = contract
        self.why_not = contract.why
        """Why the stream can no longer be continued; empty while it can."""
        self.continued = 0
        """How often it has changed its instance."""
        self.prompt_tokens = 0
        self._dialect = dialect.CHAT if contract.chat else dialect.COMPLETIONS
        self._after = self._dialect.after + b"["
        self._envelope = b""
        self._start = NEVER
        self._prompt_ids = b""
        self._dropping = False
        self._transcript = Transcript(contract.stop, contract.held_chars)
        self._log = self._transcript.log
        self._base_tokens = 0
        self._tail = ""

    @property
    def gave_out(self) -> bool:
        """The instance has said that it failed, and the client does not know."""
        return self.failed and (bool(self.error_event) or self.continued > 0)

    # What is kept.

    @property
    def kept_bytes(self) -> int:
        """About as much memory as resuming takes."""
        return self._transcript.kept_bytes + len(self._prompt_ids) + len(self._contract.params)

    @property
    def needs_body(self) -> bool:
        """The prompt's ids are not kept: to continue, the request's body has to go to `/tokenize`."""
        return not self.why_not and not self._prompt_ids

    def give_up(self, why: str) -> None:
        """Keep nothing more: the stream passes, and cannot be continued from here on."""
        self.why_not = self.why_not or why
        self._prompt_ids = b""
        self._transcript = Transcript()
        self._log = self._transcript.log

    # The stream's own events.

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the body, return those to send on now."""
        if self._dropping:
            data = self._drop(data)
        out = super().feed(data)
        if len(self._pending) > PROMPT_IDS_BYTES_MAX and not self._envelope:
            self._begin_to_drop()
        return out

    def _pass(self, event: bytes) -> bytes:
        """The usual event, one token, is known by its bytes: its text ends with the first quote, or holds escaped
        ones, which no field after it can be mistaken for."""
        if event.startswith(self._start) and event.endswith(LAST_FIELD_END):
            start = len(self._start)
            at = event.find(b'"', start)
            if not event.startswith(self._after, at):
                at = event.find(self._after, start)
                if b'","' in event[start:at]:
                    at = -1
            if at >= 0:
                cut = at + len(self._after)
                ids = event[cut : -len(LAST_FIELD_END)]
                self.output_tokens += 1 if b"," not in ids else count(ids)
                if not self.why_not:
                    self._log += b"%b\n%b\n" % (event[start:at], ids)
                return event[: cut - 1] + NO_IDS + END
        if self.continued:
            return self._rewrite(event)
        return self._pass_other(event)

    def _pass_other(self, event: bytes) -> bytes:
        """First and last events, and all that are no plain token."""
        if self.error_event:
            return b""
        at = event.find(PROMPT_IDS)
        if at >= 0:
            event = self._without_prompt(event, at + len(PROMPT_IDS))
        if not self.why_not:
            try:
                seen = seen_in(event)
            except (msgspec.DecodeError, RecursionError):
                return super()._pass(event)  # not ours to judge
            if is_broken(seen) and (self._finish_reason is not None or not self.refusal()):
                self.failed = True
                self.error_event = event
                return b""
            self._note(event, seen)
        if ONLY_IDS in event and b'"finish_reason":null' in event:
            return b""
        return super()._pass(without_ids(event))

    def _note(self, event: bytes, seen: Event) -> None:
        """Keep what a continuation needs of an event; give up where one is not possible."""
        if not self._envelope and seen.choices:
            self._envelope = envelope_of(event)
            self._start = self._envelope + self._dialect.before if self._envelope else NEVER
        for choice in seen.choices or ():
            others = {key for key, value in (choice.delta or {}).items() if value} - {"role", "content"}
            if others:
                self.give_up(
                    f"the answer has {', '.join(sorted(others))}, which the engine's parser is in the middle of"
                )
            elif choice.said and choice.token_ids is None:
                self.give_up("the instance gives no token ids")
            elif not self._envelope:
                self.give_up("the instance's events have an unknown form")
            elif choice.token_ids:
                self._log += b"%b\n%b\n" % (inside(choice.said), choice.ids)

    def _without_prompt(self, event: bytes, start: int) -> bytes:
        """The event with null for the prompt's ids that begin at `start`; they are kept unless they are too long. Found
        as text: a decoder takes a third of a millisecond over those of a prompt of 64 KB."""
        end = event.find(b"]", start)
        if end < 0:
            return event
        ids = event[start:end]
        if ids.strip():
            self.prompt_tokens = count(ids)
            if len(ids) <= PROMPT_IDS_BYTES_MAX and not self.why_not:
                self._prompt_ids = ids
        return event[: start - 1] + NO_IDS + event[end + 1 :]

    # A prompt whose ids are too long to be kept, or even to be read as one event.

    def _begin_to_drop(self) -> None:
        at = self._pending.find(PROMPT_IDS) + len(PROMPT_IDS)
        if at < len(PROMPT_IDS) or b"]" in self._pending[at:]:
            return
        self._dropping = True
        self.prompt_tokens = 1 + self._pending.count(b",", at)
        del self._pending[at:]

    def _drop(self, data: bytes) -> bytes:
        end = data.find(b"]")
        self.prompt_tokens += data.count(b",", 0, end if end >= 0 else len(data))
        if end < 0:
            return b""
        self._dropping = False
        return data[end:]

    # The instance is lost.

    def refusal(self) -> str:
        """Why the stream cannot be continued now; empty where it can."""
        if self.why_not:
            return self.why_not
        if not self._envelope:
            return "no event has come yet"
        if self._finish_reason is not None:
            return "its last token is out"
        point = self._transcript.point(self._contract.promise is Promise.EXACT)
        if point is None:
            return "no resume point: the engine holds text back, or gave several tokens at once"
        return "all its tokens are out" if self._left(point) == 0 else ""

    def ending(self) -> bytes | None:
        """What is missing where the answer itself is whole and only its last words are lost; else None."""
        if self._finish_reason is None or self.why_not or not self._envelope:
            return None
        told = self._usage is not None
        if self._usage is None:
            if not self.prompt_tokens:
                return None
            self._usage = UsageFields(self.prompt_tokens, self._transcript.tokens())
        self.whole = True
        return (b"" if told else self._usage_event(self._usage)) + DONE

    def turn(self) -> None:
        """Go back to the last resume point; what is fed from here on is the answer to `body`."""
        point = self._transcript.point(self._contract.promise is Promise.EXACT)
        assert point is not None
        self._transcript.begin_at(point)
        self._tail = point.tail
        self._base_tokens = self.output_tokens = point.tokens
        self._pending.clear()
        self._opaque = self._dropping = self.failed = False
        self._start = NEVER
        self.error_event = b""
        self.continued += 1

    def room(self, context_tokens: int | None) -> int:
        """Tokens that the instance may generate, at most 0 where it cannot continue: what is left of the client's bound
        and of the instance's context. Engines have no word for "as many as fit" on `/v1/completions`."""
        point = self._transcript.base
        left = self._left(point)
        if context_tokens is None:
            return left or 0
        fits = context_tokens - self.prompt_tokens - point.tokens
        return fits if left is None else min(left, fits)

    def body(self, room: int) -> bytes:
        """The request for the rest. The prompt's ids must be known (`needs_body`, `take_prompt`)."""
        point = self._transcript.base
        assert self._prompt_ids
        assert room > 0
        members = (
            self._contract.params,
            b'"prompt":[%b]' % b",".join(filter(None, (self._prompt_ids, point.ids))),
            b'"max_tokens":%d' % room,
            b'"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true',
        )
        return b"{%b}" % b",".join(filter(None, members))

    def take_prompt(self, answer: bytes) -> bool:
        """The answer of `/tokenize`. False: it cannot be read."""
        try:
            tokens = decode_tokenized(answer).tokens
        except (msgspec.DecodeError, RecursionError):
            return False
        self._prompt_ids = b",".join(b"%d" % one for one in tokens)
        self.prompt_tokens = len(tokens)
        return bool(tokens)

    def _left(self, point: Point) -> int | None:
        """Tokens that may still come after a resume point; None: as many as the context has room for."""
        most = self._contract.max_tokens
        return None if most is None else max(0, most - point.tokens)

    # Events of a continuation.

    def _rewrite(self, event: bytes) -> bytes:
        if self.failed:
            return b""
        name, data = fields_of(event)
        if data == b"[DONE]":
            self.whole = self._finish_reason is not None
            return event if self.whole else b""
        try:
            seen = decode_event(data) if data else Event()
        except (msgspec.DecodeError, RecursionError):
            self.failed = True
            return b""
        if name == b"error" or is_broken(seen):
            self.failed = True
            return b""
        out = [self._say(choice) for choice in seen.choices or ()]
        if seen.usage is not None and not seen.choices:
            out.append(self._account(seen.usage))
        return b"".join(out)

    def _say(self, choice: Choice) -> bytes:
        """One token of the continuation, less what the client has."""
        if self._finish_reason is not None:
            return b""
        text, finish = choice.said, choice.finish_reason
        self.output_tokens += len(choice.token_ids or ())
        if choice.token_ids and not self.why_not:
            self._log += b"%b\n%b\n" % (inside(text), choice.ids)
        if self._tail:
            same = min(len(text), len(self._tail))
            if text[:same] != self._tail[:same] or (finish is not None and len(text) < len(self._tail)):
                self.failed = True
                self.give_up("the continuation says something else than what was delivered")
                return b""
            self._tail, text = self._tail[same:], text[same:]
            if not text and finish is None:
                return b""
        self._finish_reason = finish
        stop = None if choice.stop_reason is UNSET else choice.stop_reason
        return token_event(self._envelope, self._dialect, text, finish, stop)

    def _account(self, usage: UsageFields) -> bytes:
        """Usage of the whole answer: what was generated before stood in the continuation's prompt."""
        prompt = max(0, (usage.prompt_tokens or 0) - self._base_tokens)
        completion = (usage.completion_tokens or 0) + self._base_tokens
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            details = CachedTokens(min(details.cached_tokens, prompt))
        self._usage = UsageFields(prompt, completion, details)
        self.output_tokens = completion
        return self._usage_event(self._usage)

    def _usage_event(self, usage: UsageFields) -> bytes:
        return usage_event(self._envelope, as_shown(usage)) if self._contract.wants_usage else b""
